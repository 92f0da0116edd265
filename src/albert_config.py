"""ALBERT's architecture: its sizes, the published presets, and the json files that lie beside weights."""

import math
from pathlib import Path
from typing import Any, Self

from pydantic import create_model
from pydantic.fields import FieldInfo

from model_utils.errors import CheckpointError, ConfigError, shorten
from model_utils.files import write_json
from model_utils.json_files import read_object
from model_utils.memory import available_memory
from model_utils.option_values import extra_of
from model_utils.schema import ANY, Config, option, unknown_key, with_default

LENGTH = 65_536  # tokens of a row, at most
WIDTH = 65_536  # of a layer, at most
COMPUTE_TYPES = ("float32", "float16", "bfloat16")
CONFIG_FILES = ("albert_config.json", "config.json")  # the name google and this project use; Hugging Face's
RUN_KEYS = {"compute_type", "recompute"}
OWN_KEYS = RUN_KEYS | {"share_parameters", "use_relative_positions", "max_relative_position"}  # not in transformers
# What a trained network computes does not depend on these.
TRAINING_KEYS = {"hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob", "initializer_range"}
AUTO = "auto"
REQUIRED_KEYS = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
# Keys of published files with the one value that can be built here.
FIXED_KEYS = {
    "ln_type": "postln",
    "layers_to_keep": [],
    "net_structure_type": 0,
    "position_embedding_type": "absolute",
    "tie_word_embeddings": True,
    "model_type": "albert",
}
# Keys of published files that neither weights nor results depend on; no released ALBERT code reads the pooler_* ones.
UNUSED_KEYS = frozenset(
    """
    directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type
    down_scale_factor gap_size num_memory_blocks
    _name_or_path architectures bos_token_id chunk_size_feed_forward dtype eos_token_id finetuning_task id2label
    is_decoder label2id add_cross_attention output_attentions output_hidden_states output_past pad_token_id
    problem_type return_dict torch_dtype torchscript transformers_version use_cache
    """.split()
)


class AlbertConfig(Config):
    """The sizes and choices that make one ALBERT; the defaults are ALBERT-base v2 (Lan et al. 2020, table 1)."""

    vocab_size: int = option(30000, "tokens of the vocabulary", minimum=6, maximum=10_000_000)
    embedding_size: int = option(128, "size of token, segment and position embeddings", minimum=1, maximum=WIDTH)
    hidden_size: int = option(768, "size of the encoder's states", minimum=1, maximum=WIDTH)
    num_hidden_layers: int = option(12, "layers that the text passes", minimum=1, maximum=1024)
    num_hidden_groups: int = option(
        1, "groups of consecutive layers; layers of a group share weights", minimum=1, maximum=1024
    )
    num_attention_heads: int = option(12, "attention heads of a layer", minimum=1, maximum=1024)
    intermediate_size: int = option(3072, "size inside the feed-forward blocks", minimum=1, maximum=4 * WIDTH)
    inner_group_num: int = option(1, "blocks of attention and feed-forward in one layer", minimum=1, maximum=64)
    hidden_act: str = option(
        "gelu_new",
        "activation; gelu_new is GELU through tanh, as in google's code, gelu the exact one",
        choices=("gelu_new", "gelu", "relu"),
    )
    hidden_dropout_prob: float = option(0.0, "dropout of embeddings and of each block's output", minimum=0, below=1)
    attention_probs_dropout_prob: float = option(0.0, "dropout of attention weights", minimum=0, below=1)
    classifier_dropout_prob: float = option(0.1, "dropout before the output layer of a task", minimum=0, below=1)
    max_position_embeddings: int = option(512, "longest sequence with absolute positions", minimum=1, maximum=LENGTH)
    type_vocab_size: int = option(2, "segments told apart", minimum=1, maximum=1024)
    initializer_range: float = option(
        0.02, "standard deviation of new weights; auto: what fits hidden_size, sqrt(2 / (5 x it))", above=0, maximum=10
    )
    layer_norm_eps: float = option(1e-12, "LayerNorm's epsilon", above=0, maximum=1)
    share_parameters: str = option(
        "all",
        "what the layers of a group share: all, the attention blocks, the feed-forward blocks (ffn) or none",
        choices=("all", "attention", "ffn", "none"),
    )
    use_relative_positions: bool = option(False, "NEZHA's relative positions in the attention and no absolute ones")
    max_relative_position: int = option(
        64,
        "distance beyond which relative positions are alike",
        minimum=1,
        needs=("use_relative_positions", True),
        maximum=LENGTH,
    )
    compute_type: str = option("float32", "type of the matrix products", choices=COMPUTE_TYPES)
    recompute: bool = option(False, "compute activations again for the gradient: less memory, more time", on_resume=ANY)

    def validate(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"hidden_size is {self.hidden_size} and num_attention_heads is {self.num_attention_heads}: "
                "the heads must divide the size"
            )
        if self.num_hidden_groups > self.num_hidden_layers:
            raise ConfigError(
                f"num_hidden_groups is {self.num_hidden_groups}, allowed are 1 to num_hidden_layers "
                f"({self.num_hidden_layers})"
            )
        if self.share_parameters == "none" and self.num_hidden_groups != 1:
            raise ConfigError(
                f"num_hidden_groups is {self.num_hidden_groups}, but share_parameters none leaves nothing that groups "
                "could share: leave it at 1"
            )

    @classmethod
    def from_json(cls, path: str | Path) -> Self:
        """Read google's albert_config.json, Hugging Face's config.json, or what to_json wrote.

        What `hidden_act: gelu` means depends on the writer: google's code computes the tanh form (gelu_new here),
        Hugging Face's the exact one. A file with `model_type` is Hugging Face's, one with `share_parameters` is of this
        project. compute_type and recompute belong to a run, not to weights, and keep their defaults.

        Raises:
            CheckpointError: the file is not there or not such a file, or it describes a network that is not built here.
        """
        return cls.from_values(read_object(Path(path), CheckpointError), path)

    @classmethod
    def from_values(cls, values: dict[str, Any], path: str | Path) -> Self:
        """Of what such a file holds; `path` is where it stands, for the errors of from_json."""
        known = cls.model_fields.keys() - RUN_KEYS
        for key, value in values.items():
            # Hugging Face's files hold keys of text generation and more that transformers, too, passes over.
            if key not in known | RUN_KEYS | UNUSED_KEYS | set(FIXED_KEYS) and "model_type" not in values:
                raise CheckpointError(unknown_key(key, sorted(known), str(path)))
            if FIXED_KEYS.get(key, value) != value:
                raise CheckpointError(f"{path}: {key} is {shorten(value)}, only {FIXED_KEYS[key]!r} can be built here")
        missing = [key for key in REQUIRED_KEYS if key not in values]
        if missing:
            raise CheckpointError(f"{path} does not say {', '.join(missing)}: it describes no ALBERT")
        if values.get("hidden_act") == "gelu" and not {"model_type", "share_parameters"} & set(values):
            values = values | {"hidden_act": "gelu_new"}
        try:
            return cls(**{key: value for key, value in values.items() if key in known})
        except ConfigError as error:
            raise CheckpointError(f"{path}: {error}") from None

    def to_json(self, path: str | Path) -> None:
        """Write all that the weights depend on, atomically; from_json reads it back."""
        write_json(Path(path), self.facts())

    def facts(self) -> dict[str, Any]:
        """All that the weights depend on, as JSON values."""
        return {key: value for key, value in self.to_dict().items() if key not in RUN_KEYS}


def _presets() -> dict[str, AlbertConfig]:
    """Published sizes: hidden, layers, heads, intermediate. v2 trains without dropout in the encoder, v1 with 0.1.

    albert_xlarge has the paper's 32 heads; the config.json of its weights on Hugging Face says 16. Of the published
    v1 weights the xxlarge ones alone were trained without dropout, as their config.json says.
    albert_mini is this project's, for small budgets (docs/pretraining.md).
    """
    sizes = {
        "albert_mini": (256, 4, 4, 1024),
        "albert_tiny": (312, 4, 12, 1248),
        "albert_small": (384, 6, 12, 1536),
        "albert_base": (768, 12, 12, 3072),
        "albert_large": (1024, 24, 16, 4096),
        "albert_xlarge": (2048, 24, 32, 8192),
        "albert_xxlarge": (4096, 12, 64, 16384),
    }
    presets: dict[str, AlbertConfig] = {}
    for name, (hidden, layers, heads, intermediate) in sizes.items():
        presets[name] = AlbertConfig(
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=intermediate,
            use_relative_positions=name == "albert_mini",
        )
        presets[f"{name}_v1"] = presets[name].replace(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    return presets


PRESETS = _presets()


def fitted_initializer_range(hidden_size: int) -> float:
    """Standard deviation of new weights after Nguyen & Salazar 2019 ("SmallInit"; LTG-BERT, Samuel et al. 2023).

    It is Glorot & Bengio's (2010) for the largest matrices, hidden_size x 4 hidden_size; 0.02 is near it from 768 on.
    """
    return math.sqrt(2 / (5 * hidden_size))


def _override(key: str, field: FieldInfo) -> tuple[Any, FieldInfo]:
    """A field of AlbertConfig that may be left out; what it needs may come from the preset, and is checked there."""
    override = with_default(field, None)
    words = (AUTO,) if key == "initializer_range" else ()
    override.json_schema_extra = {**extra_of(field), "needs": None, "words": words}
    return field.annotation | None, override


# The section albert_cfg of a run: every key of AlbertConfig may be given, the rest comes from the preset.
AlbertOverrides = create_model(
    "AlbertOverrides",
    __base__=Config,
    __doc__="Keys of AlbertConfig that differ from the preset.",
    __module__=__name__,
    # compute_type is a key of the run itself
    **{key: _override(key, field) for key, field in AlbertConfig.model_fields.items() if key != "compute_type"},
)


def check_memory(config: AlbertConfig, tokens: int = 0) -> None:
    """Refuse, by a ConfigError, sizes that cannot fit into this machine's memory, or its container's, in float32.

    Args:
        tokens: of a training batch; each layer keeps a state of theirs for the gradient.
    """
    shared, hidden = config.share_parameters, config.hidden_size
    attentions, feed_forwards = (
        config.num_hidden_groups if shared in ("all", kind) else config.num_hidden_layers
        for kind in ("attention", "ffn")
    )
    blocks = attentions * 4 * hidden * hidden + feed_forwards * 2 * hidden * config.intermediate_size
    weights = config.vocab_size * config.embedding_size + config.inner_group_num * blocks
    states = tokens * config.num_hidden_layers * config.hidden_size
    memory = available_memory()
    for what, entries in ((f"the model's {weights:,} weights", weights), (f"a batch of {tokens:,} tokens", states)):
        if 4 * entries > memory:
            raise ConfigError(
                f"{what} would take {4 * entries / 1e9:,.0f} GB or more, but this machine's memory has "
                f"{memory / 1e9:,.0f} GB: choose a smaller network or batch"
            )


def find_config_file(weights: str | Path) -> Path | None:
    """The json with the architecture beside a checkpoint (a file or its folder), or None where there is none."""
    folder = Path(weights) if Path(weights).is_dir() else Path(weights).parent
    return next((folder / name for name in CONFIG_FILES if (folder / name).is_file()), None)


def resolve_albert_config(
    albert_network: str, overrides: Config, vocab_size: int, compute_type: str, weights: str | Path = ""
) -> AlbertConfig:
    """The architecture of a run: the json beside `weights` if there is one, else the preset; then the overrides.

    Args:
        overrides: the section albert_cfg.
        vocab_size: tokens of the vocabulary that the data was made with.
        weights: the checkpoint that will be loaded, a file or a folder; "" for none.

    Raises:
        ConfigError: the keys contradict each other or the vocabulary.
        CheckpointError: the json beside the weights cannot be used.
    """
    file = find_config_file(weights) if weights else None
    base = AlbertConfig.from_json(file) if file else PRESETS[albert_network]
    given = overrides.to_dict()
    stated = given.get("vocab_size", base.vocab_size if file else vocab_size)
    if stated != vocab_size:
        source = "albert_cfg.vocab_size" if "vocab_size" in given else f"vocab_size in {file}"
        raise ConfigError(
            f"{source} is {stated}, but the vocabulary of the data has {vocab_size} tokens: "
            "make the data with the vocabulary that the model was trained with"
        )
    if given.get("initializer_range") == AUTO:
        given["initializer_range"] = fitted_initializer_range(given.get("hidden_size", base.hidden_size))
    try:
        merged = base.replace(**given | {"vocab_size": vocab_size, "compute_type": compute_type})
    except ConfigError as error:
        raise ConfigError(f"albert_cfg on top of {file or albert_network}: {error}") from None
    check_memory(merged)
    return merged
