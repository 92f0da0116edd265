"""ALBERT's architecture: its sizes, the published presets, and the json files beside weights."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import create_model
from pydantic.fields import FieldInfo

from model_utils.backend import Backend
from model_utils.errors import CheckpointError, ConfigError, shorten
from model_utils.files import write_json
from model_utils.json_files import read_object
from model_utils.memory import available_memory
from model_utils.option_values import rules_of
from model_utils.schema import ANY, Config, option, unknown_key, with_default

LENGTH = 65_536  # largest number of tokens of a row
WIDTH = 65_536  # largest width of a layer
COMPUTE_TYPES = ("float32", "float16", "bfloat16")
CONFIG_FILES = ("albert_config.json", "config.json")  # google's and this project's name; Hugging Face's name
RUN_KEYS = {"compute_type", "recompute", "backend"}
# Keys that are not in transformers' ALBERT.
OWN_KEYS = RUN_KEYS | {"share_parameters", "embedding_projection", "use_relative_positions", "max_relative_position"}
# Keys that do not change the output of a trained network.
TRAINING_KEYS = {"hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob", "initializer_range"}
AUTO = "auto"
REQUIRED_KEYS = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
# Keys of published files of which only this value is supported.
FIXED_KEYS = {
    "ln_type": "postln",
    "layers_to_keep": [],
    "net_structure_type": 0,
    "position_embedding_type": "absolute",
    "tie_word_embeddings": True,
    "is_decoder": False,
    "add_cross_attention": False,
}
MODEL_TYPES = ("albert", "bert")  # of transformers
# What a BERT is as an ALBERT: layers of their own, and embeddings as wide as hidden states.
BERT = {"share_parameters": "none", "embedding_projection": False}
# Keys of published files that change neither weights nor results; no released ALBERT code reads the pooler_* keys.
UNUSED_KEYS = frozenset(
    """
    directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type
    down_scale_factor gap_size num_memory_blocks
    _name_or_path architectures bos_token_id chunk_size_feed_forward dtype eos_token_id finetuning_task id2label
    label2id output_attentions output_hidden_states output_past pad_token_id
    problem_type return_dict torch_dtype torchscript transformers_version use_cache
    """.split()
)


class AlbertConfig(Config):
    """Architecture of an ALBERT network; the defaults are ALBERT-base v2 (Lan et al. 2020, table 1)."""

    vocab_size: int = option(30000, "tokens in the vocabulary", minimum=6, maximum=10_000_000)
    embedding_size: int = option(
        128, "size of the embeddings; of tokens, segments and positions", minimum=1, maximum=WIDTH
    )
    hidden_size: int = option(768, "size of the encoder's hidden states", minimum=1, maximum=WIDTH)
    num_hidden_layers: int = option(12, "encoder layers", minimum=1, maximum=1024)
    num_hidden_groups: int = option(1, "groups of consecutive layers that share weights", minimum=1, maximum=1024)
    num_attention_heads: int = option(12, "attention heads per layer", minimum=1, maximum=1024)
    intermediate_size: int = option(3072, "inner size of the feed-forward blocks", minimum=1, maximum=4 * WIDTH)
    inner_group_num: int = option(1, "blocks of attention and feed-forward per layer", minimum=1, maximum=64)
    hidden_act: str = option(
        "gelu_new",
        "activation; gelu_new is the tanh approximation of google's code, gelu is exact",
        choices=("gelu_new", "gelu", "relu"),
    )
    hidden_dropout_prob: float = option(0.0, "dropout of embeddings and block outputs", minimum=0, below=1)
    attention_probs_dropout_prob: float = option(0.0, "dropout of attention weights", minimum=0, below=1)
    classifier_dropout_prob: float = option(0.1, "dropout before a task's output layer", minimum=0, below=1)
    max_position_embeddings: int = option(512, "number of absolute positions", minimum=1, maximum=LENGTH)
    type_vocab_size: int = option(2, "number of segment types", minimum=1, maximum=1024)
    initializer_range: float = option(
        0.02, "standard deviation of new weights; auto: sqrt(2 / (5 x hidden_size))", above=0, maximum=10
    )
    layer_norm_eps: float = option(1e-12, "LayerNorm's epsilon", above=0, maximum=1)
    share_parameters: str = option(
        "all",
        "weights that a group's layers share; ffn: the feed-forward blocks",
        choices=("all", "attention", "ffn", "none"),
    )
    embedding_projection: bool = option(
        True, "dense layer between embeddings and encoder; false, as in BERT: embedding_size must equal hidden_size"
    )
    use_relative_positions: bool = option(False, "relative positions; as NEZHA's; instead of absolute ones")
    max_relative_position: int = option(
        64,
        "largest distance of relative positions; farther tokens share its embedding",
        minimum=1,
        needs=("use_relative_positions", True),
        maximum=LENGTH,
    )
    compute_type: str = option("float32", "type of matrix products", choices=COMPUTE_TYPES)
    recompute: bool = option(False, "recompute activations for the gradient; less memory, more time", on_resume=ANY)
    backend: Backend = option(Backend.AUTO, "form of the layers", choices=tuple(Backend), on_resume=ANY)

    def check_together(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            expected = f"a multiple of num_attention_heads ({self.num_attention_heads})"
            raise self.error_of("hidden_size", expected=expected)
        most_groups = 1 if self.share_parameters == "none" else self.num_hidden_layers
        if self.num_hidden_groups > most_groups:
            others = f"num_hidden_layers {self.num_hidden_layers} and share_parameters {self.share_parameters}"
            raise self.error_of("num_hidden_groups", expected=f"1 to {most_groups} with {others}")
        if not self.embedding_projection and self.embedding_size != self.hidden_size:
            expected = f"hidden_size ({self.hidden_size}) while embedding_projection is false"
            raise self.error_of("embedding_size", expected=expected)

    @property
    def is_bert(self) -> bool:
        """True if transformers' BERT has this form."""
        return all(getattr(self, key) == value for key, value in BERT.items())

    @classmethod
    def from_json(cls, path: str | Path) -> Self:
        """Read google's albert_config.json, Hugging Face's config.json of an ALBERT or a BERT, or a file of to_json.

        The meaning of `hidden_act: gelu` depends on the writer: google's code computes the tanh form (gelu_new here),
        Hugging Face's the exact one. A file with `model_type` is Hugging Face's, one with `share_parameters` is this
        project's. RUN_KEYS belong to a run, not to weights, and keep their defaults.

        Raises:
            CheckpointError: the file is missing or damaged, or its network is not supported.
            ConfigError: the network exceeds the memory.
        """
        config = cls.from_values(read_object(Path(path), CheckpointError), path)
        check_memory(config)
        return config

    @classmethod
    def from_values(cls, values: dict[str, Any], path: str | Path) -> Self:
        """Return the architecture from the content of such a file; `path` is for the errors, as in from_json."""
        own_keys = cls.model_fields.keys() - RUN_KEYS
        for key, value in values.items():
            # Hugging Face's files have keys of text generation and others, which transformers ignores, too.
            if key not in own_keys | RUN_KEYS | UNUSED_KEYS | set(FIXED_KEYS) and "model_type" not in values:
                hint = "" if Path(path).name != CONFIG_FILES[1] else "; a BERT's file needs model_type: bert"
                raise CheckpointError(f"{path}: {unknown_key(key, sorted(own_keys))}{hint}")
            if FIXED_KEYS.get(key, value) != value:
                raise CheckpointError(f"{path}: {key} is {shorten(value)}, only {FIXED_KEYS[key]!r} is supported")
        if values.get("model_type", "albert") not in MODEL_TYPES:
            raise CheckpointError(
                f"{path}: model_type is {shorten(values['model_type'])}, supported are {' and '.join(MODEL_TYPES)}"
            )
        missing = [key for key in REQUIRED_KEYS if key not in values]
        if missing:
            raise CheckpointError(f"{path} does not have {', '.join(missing)}; give the json of an ALBERT")
        if values.get("hidden_act") == "gelu" and not {"model_type", "share_parameters"} & set(values):
            values = values | {"hidden_act": "gelu_new"}
        if values.get("model_type") == "bert":
            values = _from_bert(values)
        try:
            return cls(**{key: value for key, value in values.items() if key in own_keys})
        except ConfigError as error:
            raise CheckpointError(f"{path}: {error}") from None

    def to_json(self, path: str | Path) -> None:
        """Write `saved_dict` atomically, for from_json."""
        write_json(Path(path), self.saved_dict())

    def saved_dict(self) -> dict[str, Any]:
        """Return all keys that the weights depend on, as JSON values."""
        return {key: value for key, value in self.to_dict().items() if key not in RUN_KEYS}


def _from_bert(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a BERT's config.json as that of an ALBERT, with BertConfig's defaults."""
    defaults = {"hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    merged = {**defaults, **values, **BERT, "embedding_size": values["hidden_size"]}
    dropout = merged.get("classifier_dropout")
    return merged | {"classifier_dropout_prob": merged["hidden_dropout_prob"] if dropout is None else dropout}


def _presets() -> dict[str, AlbertConfig]:
    """Return the architectures by name. v2 trains without dropout in the encoder, v1 with 0.1.

    albert_xlarge has the paper's 32 heads; the config.json of its weights on Hugging Face says 16. Of the published
    v1 weights, only xxlarge was trained without dropout, as its config.json says.
    albert_mini is this project's, for small budgets (docs/pretraining.md).
    """
    sizes = {  # hidden_size, num_hidden_layers, num_attention_heads, intermediate_size
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
    """Return the standard deviation of new weights by Nguyen & Salazar 2019 ("SmallInit").

    LTG-BERT (Samuel et al. 2023) uses it. It equals Glorot & Bengio's (2010) for the largest matrices, hidden_size x
    4 hidden_size, and is near 0.02 from a hidden_size of 768 on.
    """
    return math.sqrt(2 / (5 * hidden_size))


def _override(key: str, field: FieldInfo) -> tuple[Any, FieldInfo]:
    """Return an optional copy of a field of AlbertConfig, without `needs`: the merged architecture checks them."""
    override = with_default(field, None)
    words = (AUTO,) if key == "initializer_range" else ()
    extra: Any = {"rules": dataclasses.replace(rules_of(field), needs=None, words=words)}
    override.json_schema_extra = extra
    annotation: Any = field.annotation
    return annotation | None, override


# compute_type is a key of the run itself, and backend follows from its device_target and fused_layers.
_OVERRIDES: dict[str, Any] = {
    key: _override(key, field)
    for key, field in AlbertConfig.model_fields.items()
    if key not in ("compute_type", "backend")
}
# The section albert_cfg of a run: any keys of AlbertConfig; the others come from the preset.
AlbertOverrides: Any = create_model(
    "AlbertOverrides",
    __base__=Config,
    __doc__="Keys of AlbertConfig that differ from the preset.",
    __module__=__name__,
    **_OVERRIDES,
)


def check_memory(config: AlbertConfig, tokens: int = 0) -> None:
    """Raise ConfigError if the network or a batch, in float32, exceeds the memory of this machine or its container.

    Args:
        tokens: tokens of a training batch; each layer keeps their states for the gradient.
    """
    hidden = config.hidden_size
    layers = config.num_hidden_layers
    attentions = config.num_hidden_groups if config.share_parameters in ("all", "attention") else layers
    feed_forwards = config.num_hidden_groups if config.share_parameters in ("all", "ffn") else layers
    blocks = attentions * 4 * hidden * hidden + feed_forwards * 2 * hidden * config.intermediate_size
    weights = config.vocab_size * config.embedding_size + config.inner_group_num * blocks
    states = tokens * layers * hidden
    memory = available_memory()
    for name, entries in ((f"the model's {weights:,} weights", weights), (f"a batch of {tokens:,} tokens", states)):
        if 4 * entries > memory:
            raise ConfigError(
                f"{name} would take {4 * entries / 1e9:,.0f} GB or more, but this machine's memory has "
                f"{memory / 1e9:,.0f} GB: choose a smaller network or batch"
            )


def find_config_file(weights: str | Path) -> Path | None:
    """Return the json with the architecture beside a checkpoint (a file or its folder); None if there is none."""
    folder = Path(weights) if Path(weights).is_dir() else Path(weights).parent
    return next((folder / name for name in CONFIG_FILES if (folder / name).is_file()), None)


def resolve_albert_config(
    albert_network: str, overrides: Config, vocab_size: int, compute_type: str, weights: str | Path = ""
) -> AlbertConfig:
    """Return the architecture of a run: the json beside `weights`, or else the preset, with the overrides applied.

    Args:
        overrides: the section albert_cfg.
        vocab_size: size of the data's vocabulary.
        weights: the checkpoint to load, a file or a folder; "" for none.

    Raises:
        ConfigError: the keys contradict each other or the vocabulary.
        CheckpointError: the json beside the weights cannot be used.
    """
    file = find_config_file(weights) if weights else None
    base = AlbertConfig.from_json(file) if file else PRESETS[albert_network]
    changes = overrides.to_dict()
    model_vocab_size = changes.get("vocab_size", base.vocab_size if file else vocab_size)
    if model_vocab_size != vocab_size:
        source = "albert_cfg.vocab_size" if "vocab_size" in changes else f"vocab_size in {file}"
        problem = f"the vocabulary of the data has {vocab_size} tokens"
        hint = "make the data with the vocabulary that the model was trained with"
        raise ConfigError(key=source, value=model_vocab_size, problem=problem, hint=hint)
    if changes.get("initializer_range") == AUTO:
        changes["initializer_range"] = fitted_initializer_range(changes.get("hidden_size", base.hidden_size))
    try:
        merged = base.replace(**changes | {"vocab_size": vocab_size, "compute_type": compute_type})
    except ConfigError as error:
        raise error.within("albert_cfg").at(f"on top of {file or albert_network}") from None
    check_memory(merged)
    return merged
