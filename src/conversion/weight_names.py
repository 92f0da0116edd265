"""Names of weights in google's checkpoints and in those of transformers, by this project's names.

google's checkpoints cover pre-training, classification, regression, RACE, and both heads for SQuAD; its kernels are
(in, out), the matrices here and at Hugging Face (out, in). This module needs neither TensorFlow, torch nor MindSpore.
"""

import re

import numpy as np

MAPPING = "albert.encoder.embedding_hidden_mapping"
_TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")

# Names of modules by this project's; of those in a block below albert.encoder, with the block's number at the star.
_GOOGLE = {
    MAPPING: "bert/encoder/embedding_hidden_mapping_in",
    "albert.embeddings.layer_norm": "bert/embeddings/LayerNorm",
    "albert.pooler": "bert/pooler/dense",
    "mlm.dense": "cls/predictions/transform/dense",
    "mlm.layer_norm": "cls/predictions/transform/LayerNorm",
    "start_logits": "start_logits/dense",
    "end_hidden": "end_logits/dense_0",
    "end_layer_norm": "end_logits/LayerNorm",
    "end_logits": "end_logits/dense_1",
    "answer_hidden": "answer_class/dense_0",
    "answer_logits": "answer_class/dense_1",
}
_GOOGLE_SCOPE = "bert/encoder/transformer/group_{}/inner_group_{}/"
_GOOGLE_BLOCK = {
    "attentions.*.query": "attention_1/self/query",
    "attentions.*.key": "attention_1/self/key",
    "attentions.*.value": "attention_1/self/value",
    "attentions.*.output": "attention_1/output/dense",
    "attentions.*.layer_norm": "LayerNorm",
    "feed_forwards.*.intermediate": "ffn_1/intermediate/dense",
    "feed_forwards.*.output": "ffn_1/intermediate/output/dense",
    "feed_forwards.*.layer_norm": "LayerNorm_1",
}
_GOOGLE_ENDINGS = {"weight": "/kernel", "bias": "/bias", "gamma": "/gamma", "beta": "/beta"}
# Output layers, which google stores as (labels, in); those of classification, regression and RACE have no scope.
_GOOGLE_OUTPUT_LAYERS = {"sop": "cls/seq_relationship/", "qa_outputs": "cls/squad/", "classifier": ""}
# Slots and counters of google's and TensorFlow's optimizers.
_TRAINING_STATE = re.compile(r"(.*/)?(adam_[mv]|lamb_[mv]|Adam|Adam_1|global_step|beta[12]_power|learning_rate)")

_ALBERT = {
    MAPPING: "albert.encoder.embedding_hidden_mapping_in",
    "albert.embeddings.layer_norm": "albert.embeddings.LayerNorm",
    "albert.pooler": "albert.pooler",
    "mlm.dense": "predictions.dense",
    "mlm.layer_norm": "predictions.LayerNorm",
    "sop": "sop_classifier.classifier",
}
_ALBERT_SCOPE = "albert.encoder.albert_layer_groups.{}.albert_layers.{}."
_ALBERT_BLOCK = {
    "attentions.*.query": "attention.query",
    "attentions.*.key": "attention.key",
    "attentions.*.value": "attention.value",
    "attentions.*.output": "attention.dense",
    "attentions.*.layer_norm": "attention.LayerNorm",
    "feed_forwards.*.intermediate": "ffn",
    "feed_forwards.*.output": "ffn_output",
    "feed_forwards.*.layer_norm": "full_layer_layer_norm",
}
_BERT = {
    "albert.embeddings.layer_norm": "bert.embeddings.LayerNorm",
    "albert.pooler": "bert.pooler.dense",
    "mlm.dense": "cls.predictions.transform.dense",
    "mlm.layer_norm": "cls.predictions.transform.LayerNorm",
    "sop": "cls.seq_relationship",
}
_BERT_SCOPE = "bert.encoder.layer.{}."
_BERT_BLOCK = {
    "attentions.*.query": "attention.self.query",
    "attentions.*.key": "attention.self.key",
    "attentions.*.value": "attention.self.value",
    "attentions.*.output": "attention.output.dense",
    "attentions.*.layer_norm": "attention.output.LayerNorm",
    "feed_forwards.*.intermediate": "intermediate.dense",
    "feed_forwards.*.output": "output.dense",
    "feed_forwards.*.layer_norm": "output.LayerNorm",
}
_TORCH_ENDINGS = {"weight": ".weight", "bias": ".bias", "gamma": ".weight", "beta": ".bias"}
# Copies in Hugging Face's state dicts, and the weights they are tied to.
TIED_COPIES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
}


def google_names(num_hidden_groups: int = 1, inner_group_num: int = 1) -> dict[str, str]:
    """Return google's variable of every weight of every head, by this project's name (share_parameters: all).

    Block i * inner_group_num + j here is google's inner group j of group i.
    """
    names = {f"albert.embeddings.{table}": f"bert/embeddings/{table}" for table in _TABLES}
    names |= _weights(_GOOGLE, _GOOGLE_ENDINGS)
    names |= _weights(_blocks(_GOOGLE_BLOCK, _GOOGLE_SCOPE, num_hidden_groups, inner_group_num), _GOOGLE_ENDINGS)
    del names["answer_logits.bias"]  # google's head has none
    for name, scope in _GOOGLE_OUTPUT_LAYERS.items():
        names |= {f"{name}.weight": f"{scope}output_weights", f"{name}.bias": f"{scope}output_bias"}
    return names | {"mlm.bias": "cls/predictions/output_bias"}


def hugging_face_names(num_hidden_groups: int = 1, inner_group_num: int = 1) -> dict[str, str]:
    """Return Hugging Face's name of every pre-training weight, by this project's name (share_parameters: all).

    With share_parameters none, every layer is a group at Hugging Face: num_hidden_groups is the number of layers.
    Blocks are numbered as in google_names.
    """
    names = {f"albert.embeddings.{table}": f"albert.embeddings.{table}.weight" for table in _TABLES}
    names |= _weights(_ALBERT, _TORCH_ENDINGS)
    names |= _weights(_blocks(_ALBERT_BLOCK, _ALBERT_SCOPE, num_hidden_groups, inner_group_num), _TORCH_ENDINGS)
    return names | {"mlm.bias": "predictions.bias"}


def bert_names(layers: int) -> dict[str, str]:
    """Return the name of every pre-training weight in transformers' BERT, by this project's name.

    Its next-sentence head stands where the sentence-order head stands here.
    """
    names = {f"albert.embeddings.{table}": f"bert.embeddings.{table}.weight" for table in _TABLES}
    names |= _weights(_BERT, _TORCH_ENDINGS) | _weights(_blocks(_BERT_BLOCK, _BERT_SCOPE, layers, 1), _TORCH_ENDINGS)
    return names | {"mlm.bias": "cls.predictions.bias"}


def _blocks(modules: dict[str, str], scope: str, groups: int, inner_groups: int) -> dict[str, str]:
    """Return the names of the modules of all blocks, by this project's name."""
    return {
        f"albert.encoder.{name.replace('*', str(block))}": scope.format(*divmod(block, inner_groups)) + module
        for block in range(groups * inner_groups)
        for name, module in modules.items()
    }


def _weights(modules: dict[str, str], endings: dict[str, str]) -> dict[str, str]:
    """Return the names of the two weights of each module, by this project's name."""
    names = {}
    for name, module in modules.items():
        for weight in ("gamma", "beta") if name.endswith("layer_norm") else ("weight", "bias"):
            names[f"{name}.{weight}"] = module + endings[weight]
    return names


def from_google(variable: str, value: np.ndarray) -> np.ndarray:
    """Return the value as this project stores it: kernels transposed from (in, out) to (out, in)."""
    return np.ascontiguousarray(value.T) if variable.endswith("/kernel") else value


def is_training_state(variable: str) -> bool:
    """Return True if one of google's variables belongs to the optimizer and not to the model."""
    return _TRAINING_STATE.fullmatch(variable) is not None
