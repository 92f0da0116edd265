"""Hugging Face's names for this project's weights, as transformers' Albert classes and their checkpoints use them.

Values are the same on both sides: both store the matrix of a dense layer as (out, in). Needs neither torch nor
MindSpore.
"""

# Copies that Hugging Face's state dict holds beside the weights they are tied to.
TIED_COPIES = {
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
}

_EMBEDDINGS = "albert.embeddings."
_TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")
_DENSE = {
    "albert.encoder.embedding_hidden_mapping": "albert.encoder.embedding_hidden_mapping_in",
    "albert.pooler": "albert.pooler",
    "mlm.dense": "predictions.dense",
    "sop": "sop_classifier.classifier",
}
_LAYER_NORMS = {
    "albert.embeddings.layer_norm": "albert.embeddings.LayerNorm",
    "mlm.layer_norm": "predictions.LayerNorm",
}
# Below albert.encoder here (the block's number at the star), below one of albert_layers there.
_BLOCK_DENSE = {
    "attentions.*.query": "attention.query",
    "attentions.*.key": "attention.key",
    "attentions.*.value": "attention.value",
    "attentions.*.output": "attention.dense",
    "feed_forwards.*.intermediate": "ffn",
    "feed_forwards.*.output": "ffn_output",
}
_BLOCK_LAYER_NORMS = {
    "attentions.*.layer_norm": "attention.LayerNorm",
    "feed_forwards.*.layer_norm": "full_layer_layer_norm",
}


def hugging_face_names(num_hidden_groups: int = 1, inner_group_num: int = 1) -> dict[str, str]:
    """This project's name of every pre-training weight -> Hugging Face's, for the shared form (share_parameters: all).

    Layers that share nothing are there a group each: num_hidden_groups is the number of layers then.

    Args:
        num_hidden_groups, inner_group_num: as in AlbertConfig; block i * inner_group_num + j here is layer j of
            group i there.
    """
    dense, layer_norms = dict(_DENSE), dict(_LAYER_NORMS)
    for group in range(num_hidden_groups):
        for inner in range(inner_group_num):
            block = str(group * inner_group_num + inner)
            theirs = f"albert.encoder.albert_layer_groups.{group}.albert_layers.{inner}."
            for modules, block_modules in ((dense, _BLOCK_DENSE), (layer_norms, _BLOCK_LAYER_NORMS)):
                for name, their_name in block_modules.items():
                    modules["albert.encoder." + name.replace("*", block)] = theirs + their_name
    names = {_EMBEDDINGS + table: f"{_EMBEDDINGS}{table}.weight" for table in _TABLES}
    for name, their_name in dense.items():
        names |= {f"{name}.weight": f"{their_name}.weight", f"{name}.bias": f"{their_name}.bias"}
    for name, their_name in layer_norms.items():
        names |= {f"{name}.gamma": f"{their_name}.weight", f"{name}.beta": f"{their_name}.bias"}
    return names | {"mlm.bias": "predictions.bias"}
