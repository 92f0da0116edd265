"""This project's names of weights -> google's variables, and -> Hugging Face's, as transformers' checkpoints have them.

google's cover pre-training, classification, regression, RACE, and both heads for SQuAD; its kernels are (in, out), the
matrices here and at Hugging Face (out, in). Needs neither TensorFlow nor torch nor MindSpore.
"""

import re
from collections.abc import Iterator

import numpy as np

MAPPING = "albert.encoder.embedding_hidden_mapping"
_TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")

_GOOGLE_DENSE = {
    MAPPING: "bert/encoder/embedding_hidden_mapping_in",
    "albert.pooler": "bert/pooler/dense",
    "mlm.dense": "cls/predictions/transform/dense",
    "start_logits": "start_logits/dense",
    "end_hidden": "end_logits/dense_0",
    "end_logits": "end_logits/dense_1",
    "answer_hidden": "answer_class/dense_0",
    "answer_logits": "answer_class/dense_1",
}
_GOOGLE_LAYER_NORMS = {
    "albert.embeddings.layer_norm": "bert/embeddings/LayerNorm",
    "mlm.layer_norm": "cls/predictions/transform/LayerNorm",
    "end_layer_norm": "end_logits/LayerNorm",
}
# Output layers that google keeps as (labels, in); classification, regression and RACE have them outside every scope.
_GOOGLE_OUTPUT_LAYERS = {"sop": "cls/seq_relationship/", "qa_outputs": "cls/squad/", "classifier": ""}
# Below albert.encoder here (the block's number at the star), below _GOOGLE_BLOCK there.
_GOOGLE_BLOCK = "bert/encoder/transformer/group_{}/inner_group_{}/"
_GOOGLE_BLOCK_DENSE = {
    "attentions.*.query": "attention_1/self/query",
    "attentions.*.key": "attention_1/self/key",
    "attentions.*.value": "attention_1/self/value",
    "attentions.*.output": "attention_1/output/dense",
    "feed_forwards.*.intermediate": "ffn_1/intermediate/dense",
    "feed_forwards.*.output": "ffn_1/intermediate/output/dense",
}
_GOOGLE_BLOCK_LAYER_NORMS = {"attentions.*.layer_norm": "LayerNorm", "feed_forwards.*.layer_norm": "LayerNorm_1"}
# Slots and counters of google's and TensorFlow's optimizers.
_TRAINING_STATE = re.compile(r"(.*/)?(adam_[mv]|lamb_[mv]|Adam|Adam_1|global_step|beta[12]_power|learning_rate)")

_HF_DENSE = {
    MAPPING: "albert.encoder.embedding_hidden_mapping_in",
    "albert.pooler": "albert.pooler",
    "mlm.dense": "predictions.dense",
    "sop": "sop_classifier.classifier",
}
_HF_LAYER_NORMS = {
    "albert.embeddings.layer_norm": "albert.embeddings.LayerNorm",
    "mlm.layer_norm": "predictions.LayerNorm",
}
_HF_BLOCK = "albert.encoder.albert_layer_groups.{}.albert_layers.{}."
_HF_BLOCK_DENSE = {
    "attentions.*.query": "attention.query",
    "attentions.*.key": "attention.key",
    "attentions.*.value": "attention.value",
    "attentions.*.output": "attention.dense",
    "feed_forwards.*.intermediate": "ffn",
    "feed_forwards.*.output": "ffn_output",
}
_HF_BLOCK_LAYER_NORMS = {
    "attentions.*.layer_norm": "attention.LayerNorm",
    "feed_forwards.*.layer_norm": "full_layer_layer_norm",
}
_BERT_DENSE = {
    "albert.pooler": "bert.pooler.dense",
    "mlm.dense": "cls.predictions.transform.dense",
    "sop": "cls.seq_relationship",
}
_BERT_LAYER_NORMS = {
    "albert.embeddings.layer_norm": "bert.embeddings.LayerNorm",
    "mlm.layer_norm": "cls.predictions.transform.LayerNorm",
}
_BERT_BLOCK = "bert.encoder.layer.{}."
_BERT_BLOCK_DENSE = {
    "attentions.*.query": "attention.self.query",
    "attentions.*.key": "attention.self.key",
    "attentions.*.value": "attention.self.value",
    "attentions.*.output": "attention.output.dense",
    "feed_forwards.*.intermediate": "intermediate.dense",
    "feed_forwards.*.output": "output.dense",
}
_BERT_BLOCK_LAYER_NORMS = {
    "attentions.*.layer_norm": "attention.output.LayerNorm",
    "feed_forwards.*.layer_norm": "output.LayerNorm",
}
# Copies that Hugging Face's state dicts hold beside the weights they are tied to.
TIED_COPIES = {
    "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    "predictions.decoder.bias": "predictions.bias",
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


def google_names(num_hidden_groups: int = 1, inner_group_num: int = 1) -> dict[str, str]:
    """This project's name of every weight of every head -> google's variable (share_parameters: all).

    Block i * inner_group_num + j here is inner group j of group i there.
    """
    size = num_hidden_groups, inner_group_num
    names = {f"albert.embeddings.{table}": f"bert/embeddings/{table}" for table in _TABLES}
    for name, theirs in _modules(_GOOGLE_DENSE, _GOOGLE_BLOCK_DENSE, _GOOGLE_BLOCK, *size):
        names |= {f"{name}.weight": f"{theirs}/kernel", f"{name}.bias": f"{theirs}/bias"}
    del names["answer_logits.bias"]  # google's head has none
    for name, theirs in _modules(_GOOGLE_LAYER_NORMS, _GOOGLE_BLOCK_LAYER_NORMS, _GOOGLE_BLOCK, *size):
        names |= {f"{name}.gamma": f"{theirs}/gamma", f"{name}.beta": f"{theirs}/beta"}
    for name, scope in _GOOGLE_OUTPUT_LAYERS.items():
        names |= {f"{name}.weight": f"{scope}output_weights", f"{name}.bias": f"{scope}output_bias"}
    return names | {"mlm.bias": "cls/predictions/output_bias"}


def hugging_face_names(num_hidden_groups: int = 1, inner_group_num: int = 1) -> dict[str, str]:
    """This project's name of every pre-training weight -> Hugging Face's, for the shared form (share_parameters: all).

    Layers that share nothing are there a group each: num_hidden_groups is the number of layers then. Blocks are
    numbered as in google_names.
    """
    size = num_hidden_groups, inner_group_num
    names = {f"albert.embeddings.{table}": f"albert.embeddings.{table}.weight" for table in _TABLES}
    for name, theirs in _modules(_HF_DENSE, _HF_BLOCK_DENSE, _HF_BLOCK, *size):
        names |= {f"{name}.weight": f"{theirs}.weight", f"{name}.bias": f"{theirs}.bias"}
    for name, theirs in _modules(_HF_LAYER_NORMS, _HF_BLOCK_LAYER_NORMS, _HF_BLOCK, *size):
        names |= {f"{name}.gamma": f"{theirs}.weight", f"{name}.beta": f"{theirs}.bias"}
    return names | {"mlm.bias": "predictions.bias"}


def bert_names(layers: int) -> dict[str, str]:
    """This project's name of every pre-training weight -> that of transformers' BERT.

    The head of two classes, next sentence there, stands where sentence order stands here.
    """
    names = {f"albert.embeddings.{table}": f"bert.embeddings.{table}.weight" for table in _TABLES}
    for name, theirs in _modules(_BERT_DENSE, _BERT_BLOCK_DENSE, _BERT_BLOCK, layers, 1):
        names |= {f"{name}.weight": f"{theirs}.weight", f"{name}.bias": f"{theirs}.bias"}
    for name, theirs in _modules(_BERT_LAYER_NORMS, _BERT_BLOCK_LAYER_NORMS, _BERT_BLOCK, layers, 1):
        names |= {f"{name}.gamma": f"{theirs}.weight", f"{name}.beta": f"{theirs}.bias"}
    return names | {"mlm.bias": "cls.predictions.bias"}


def _modules(
    outside: dict[str, str], of_block: dict[str, str], place: str, groups: int, inner_groups: int
) -> Iterator[tuple[str, str]]:
    """Name and their name of the modules outside the blocks and of those in every block, whose scope is `place`."""
    yield from outside.items()
    for block in range(groups * inner_groups):
        scope = place.format(*divmod(block, inner_groups))
        for name, theirs in of_block.items():
            yield "albert.encoder." + name.replace("*", str(block)), scope + theirs


def from_google(variable: str, value: np.ndarray) -> np.ndarray:
    """The value as this project stores it: kernels turned from (in, out) to (out, in)."""
    return np.ascontiguousarray(value.T) if variable.endswith("/kernel") else value


def is_training_state(variable: str) -> bool:
    """Return whether one of google's variables belongs to the optimizer and not to the model."""
    return _TRAINING_STATE.fullmatch(variable) is not None
