"""google's names for this project's weights, as the variables of google-research/albert's checkpoints.

Covers pre-training, classification, regression, RACE, and both heads for SQuAD. TensorFlow's kernels are (in, out),
this project's matrices (out, in). Needs neither TensorFlow nor MindSpore.
"""

import re

import numpy as np

_TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")
_DENSE = {
    "albert.encoder.embedding_hidden_mapping": "bert/encoder/embedding_hidden_mapping_in",
    "albert.pooler": "bert/pooler/dense",
    "mlm.dense": "cls/predictions/transform/dense",
    "start_logits": "start_logits/dense",
    "end_hidden": "end_logits/dense_0",
    "end_logits": "end_logits/dense_1",
    "answer_hidden": "answer_class/dense_0",
    "answer_logits": "answer_class/dense_1",
}
_LAYER_NORMS = {
    "albert.embeddings.layer_norm": "bert/embeddings/LayerNorm",
    "mlm.layer_norm": "cls/predictions/transform/LayerNorm",
    "end_layer_norm": "end_logits/LayerNorm",
}
# Output layers that google keeps as (labels, in); classification, regression and RACE have them outside every scope.
_OUTPUT_LAYERS = {"sop": "cls/seq_relationship/", "qa_outputs": "cls/squad/", "classifier": ""}
_WITHOUT_BIAS = {"answer_logits"}
# Below albert.encoder here (the block's number at the star), below an inner group there.
_BLOCK_DENSE = {
    "attentions.*.query": "attention_1/self/query",
    "attentions.*.key": "attention_1/self/key",
    "attentions.*.value": "attention_1/self/value",
    "attentions.*.output": "attention_1/output/dense",
    "feed_forwards.*.intermediate": "ffn_1/intermediate/dense",
    "feed_forwards.*.output": "ffn_1/intermediate/output/dense",
}
_BLOCK_LAYER_NORMS = {"attentions.*.layer_norm": "LayerNorm", "feed_forwards.*.layer_norm": "LayerNorm_1"}
# Slots and counters of google's and TensorFlow's optimizers.
_TRAINING_STATE = re.compile(r"(.*/)?(adam_[mv]|lamb_[mv]|Adam|Adam_1|global_step|beta[12]_power|learning_rate)")


def google_names(num_hidden_groups: int = 1, inner_group_num: int = 1) -> dict[str, str]:
    """This project's name of every weight of every head -> google's variable (share_parameters: all).

    Args:
        num_hidden_groups, inner_group_num: as in AlbertConfig; block i * inner_group_num + j here is inner group j of
            group i there.
    """
    dense, layer_norms = dict(_DENSE), dict(_LAYER_NORMS)
    for group in range(num_hidden_groups):
        for inner in range(inner_group_num):
            block = str(group * inner_group_num + inner)
            theirs = f"bert/encoder/transformer/group_{group}/inner_group_{inner}/"
            for modules, block_modules in ((dense, _BLOCK_DENSE), (layer_norms, _BLOCK_LAYER_NORMS)):
                for name, their_name in block_modules.items():
                    modules["albert.encoder." + name.replace("*", block)] = theirs + their_name
    names = {f"albert.embeddings.{table}": f"bert/embeddings/{table}" for table in _TABLES}
    for name, their_name in dense.items():
        names[f"{name}.weight"] = f"{their_name}/kernel"
        if name not in _WITHOUT_BIAS:
            names[f"{name}.bias"] = f"{their_name}/bias"
    for name, their_name in layer_norms.items():
        names |= {f"{name}.{kind}": f"{their_name}/{kind}" for kind in ("gamma", "beta")}
    for name, scope in _OUTPUT_LAYERS.items():
        names |= {f"{name}.weight": f"{scope}output_weights", f"{name}.bias": f"{scope}output_bias"}
    return names | {"mlm.bias": "cls/predictions/output_bias"}


def from_google(variable: str, value: np.ndarray) -> np.ndarray:
    """The value as this project stores it: kernels turned from (in, out) to (out, in)."""
    return np.ascontiguousarray(value.T) if variable.endswith("/kernel") else value


def is_training_state(variable: str) -> bool:
    """Whether a variable belongs to the optimizer and not to the model."""
    return _TRAINING_STATE.fullmatch(variable) is not None
