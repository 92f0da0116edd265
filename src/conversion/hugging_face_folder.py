"""Read and write a model as Hugging Face's transformers keep it: config.json, weights, vocabulary."""

import logging
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from safetensors.numpy import save_file

from model_utils.errors import CheckpointError, ConfigError, DataError
from model_utils.files import write_json
from model_utils.json_files import Schema, matching, read_json
from src.albert_config import RUN_KEYS, AlbertConfig
from src.conversion.hf_names import TIED_COPIES, hugging_face_names
from src.conversion.own_checkpoint import has_initial_pooler
from src.conversion.portable_model import PortableModel, Vocabulary, account, check_shapes, settle_task
from src.conversion.tokenizer_json import build_tokenizer_json, extract_vocabulary
from src.conversion.torch_weights import read_weights
from src.foreign_weights import SAFETENSORS
from src.task_file import SettingsSchema, Task
from src.tasks import FINE_TUNED
from src.tasks import TASKS as SPECS
from src.tokenization import SENTENCEPIECE_SPECIALS, FullTokenizer

logger = logging.getLogger(__name__)
CONFIG, TOKENIZER_CONFIG, TOKENIZER = "config.json", "tokenizer_config.json", "tokenizer.json"
OURS = "albert_mindspore"  # key of what task.json says beside task and labels; transformers keeps it unused
BACKBONE = "albert."  # before the backbone's names, but in AlbertModel's own files
POSITION_IDS = "albert.embeddings.position_ids"  # 0, 1, 2, ...: a constant that older files hold
WITHOUT_POOLER = ("AlbertForMaskedLM", "AlbertForQuestionAnswering", "AlbertForTokenClassification")
NEITHER_HERE_NOR_THERE = ("share_parameters", "use_relative_positions", "max_relative_position")
# The class of transformers for each task of a fine-tuned model; SQuAD v2's beam search has none.
ARCHITECTURES = {name: head.hugging_face for name in FINE_TUNED if (head := SPECS[name].head).hugging_face}
HEAD_NAMES = dict.fromkeys(
    f"{SPECS[name].head.module}.{weight}" for name in ARCHITECTURES for weight in ("weight", "bias")
)
TASKS = {architecture: task for task, architecture in ARCHITECTURES.items() if task != "regression"}


# --- reading ---


class ConfigSchema(Schema):
    """What config.json says beside the architecture, which src/albert_config.py reads."""

    architectures: list[str] | None = None
    hidden_act: str | None = None
    problem_type: str | None = None
    id2label: dict[Annotated[str, matching("[0-9]{1,9}", "the number of an output")], str | int] | None = None
    albert_mindspore: SettingsSchema = SettingsSchema()


class TokenizerSettingsSchema(Schema):
    """What tokenizer_config.json says. The defaults are what the tokenization here does; case alone it can keep."""

    do_lower_case: bool = True
    keep_accents: bool = False
    tokenize_chinese_chars: bool = True


def read_hugging_face(folder: Path, task: str = "", labels: tuple[str, ...] = ()) -> PortableModel:
    """The model in a folder with config.json and its weights; the vocabulary too, if it is there.

    Args:
        task, labels: what a fine-tuned head is for, where config.json does not say.

    Raises:
        CheckpointError: a file is missing, damaged, or does not fit the others.
        DataError: the vocabulary cannot be used.
        ConfigError: task or labels do not fit, or a file needs torch.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder: a Hugging Face model is one, with {CONFIG} and {SAFETENSORS}")
    config = AlbertConfig.from_json(folder / CONFIG)
    stated = read_json(folder / CONFIG, ConfigSchema, CheckpointError)
    # from_json may take the file for google's, whose gelu is another one.
    config = config.replace(hidden_act=stated.hidden_act or config.hidden_act)
    weights = read_weights(folder)
    if not any(name.startswith(BACKBONE) for name in weights):
        weights = {BACKBONE + name: value for name, value in weights.items()}
    read = len(weights)
    weights.pop(POSITION_IDS, None)
    _drop_copies(weights, folder)
    names = hugging_face_names(config.num_hidden_groups, config.inner_group_num) | {name: name for name in HEAD_NAMES}
    matched = account(names, weights, read - len(weights), folder)
    values = {name: weights[theirs] for name, theirs in matched.items()}
    for name, theirs in matched.items():
        if values[name].dtype != np.float32:
            raise CheckpointError(f"{folder}: {theirs} is {values[name].dtype}, a weight is a float")
    check_shapes(values, config, folder)
    settled = settle_task(values, _stated_task(stated, values, folder), task, labels, folder)
    return PortableModel(config, values, settled, _read_vocabulary(folder))


def _drop_copies(weights: dict[str, np.ndarray], folder: Path) -> None:
    for copy, original in TIED_COPIES.items():
        if copy in weights and original in weights:
            if not np.array_equal(weights[copy], weights[original]):
                raise CheckpointError(f"{folder}: {copy} differs from {original}; here they are one")
            del weights[copy]


def _stated_task(stated: ConfigSchema, values: dict[str, np.ndarray], folder: Path) -> Task | None:
    if stated.problem_type == "multi_label_classification":
        raise CheckpointError(f"{folder}: problem_type is multi_label_classification; classes here exclude each other")
    tasks = [TASKS[name] for name in stated.architectures or () if name in TASKS]
    if not tasks:
        return None
    settings = stated.albert_mindspore.model_dump(exclude_unset=True)
    if tasks[0] == "classification" and len(values.get("classifier.bias", ())) == 1:
        return Task("regression", (), settings)
    labels = stated.id2label or {}
    return Task(tasks[0], tuple(str(labels[key]) for key in sorted(labels, key=int)), settings)


def _read_vocabulary(folder: Path) -> Vocabulary | None:
    file = folder / TOKENIZER_CONFIG
    settings = read_json(file, TokenizerSettingsSchema) if file.is_file() else TokenizerSettingsSchema()
    for key, field in TokenizerSettingsSchema.model_fields.items():
        if key != "do_lower_case" and getattr(settings, key) != field.default:
            raise DataError(f"{file}: {key} is {getattr(settings, key)}, the tokenization here has {field.default}")
    lower = settings.do_lower_case
    for name, is_sentencepiece in (("spiece.model", True), ("vocab.txt", False)):
        if (folder / name).is_file():
            return Vocabulary((folder / name).read_bytes(), name, is_sentencepiece, lower)
    if (folder / TOKENIZER).is_file():
        content, is_sentencepiece = extract_vocabulary(folder / TOKENIZER)
        return Vocabulary(content, "spiece.model" if is_sentencepiece else "vocab.txt", is_sentencepiece, lower)
    return None


# --- writing ---


def write_hugging_face(model: PortableModel, folder: Path) -> None:
    """Write what from_pretrained of the model's class in transformers loads.

    Raises:
        CheckpointError: transformers has no class for such a model.
        ConfigError: the task of its head is not known.
        DataError: the vocabulary does not fit the model.
    """
    architecture = _architecture(model)
    config, groups = model.config, model.config.num_hidden_groups
    if config.share_parameters == "none":
        groups = config.num_hidden_layers  # a group each
    names = hugging_face_names(groups, config.inner_group_num) | {name: name for name in HEAD_NAMES}
    values = {names[name]: np.ascontiguousarray(value) for name, value in model.values.items()}
    if architecture in WITHOUT_POOLER and has_initial_pooler(model):
        values = {name: value for name, value in values.items() if not name.startswith("albert.pooler.")}
    if architecture == "AlbertModel":
        values = {name.removeprefix(BACKBONE): value for name, value in values.items()}
    save_file(values, folder / SAFETENSORS, metadata={"format": "pt"})
    tokenizer = _write_vocabulary(model, folder)
    sizes = {key: value for key, value in config.to_dict().items() if key not in {*RUN_KEYS, *NEITHER_HERE_NOR_THERE}}
    described = {"architectures": [architecture], "model_type": "albert", "dtype": "float32", **sizes}
    described["num_hidden_groups"] = groups
    if tokenizer is not None:
        described |= {
            "pad_token_id": tokenizer.pad_id,
            "bos_token_id": tokenizer.cls_id,
            "eos_token_id": tokenizer.sep_id,
        }
    write_json(folder / CONFIG, described | _describe_task(model.task))
    logger.info(f"{len(values)} weights as {architecture}")


def _architecture(model: PortableModel) -> str:
    """The class of transformers for a model."""
    config, modules = model.config, {name.partition(".")[0] for name in model.values}
    if config.use_relative_positions:
        raise CheckpointError(
            "the model has relative positions (use_relative_positions), transformers' ALBERT has none"
        )
    if config.share_parameters not in ("all", "none"):
        raise CheckpointError(
            f"the model's layers share {config.share_parameters} alone (share_parameters); transformers' ALBERT shares "
            "whole layers or nothing"
        )
    if "classifier_hidden" in modules:
        raise CheckpointError("the model has a hidden layer before its classifier, transformers' ALBERT has none")
    if model.task is None and "classifier" in modules:
        raise ConfigError("a Hugging Face folder says what its model is for: give --task")
    if model.task is None:
        return (
            "AlbertForPreTraining" if "sop" in modules else "AlbertForMaskedLM" if "mlm" in modules else "AlbertModel"
        )
    if model.task.task not in ARCHITECTURES:
        raise CheckpointError(f"the model is for {model.task.task}: transformers has no ALBERT with such a beam search")
    if modules & {"mlm", "sop"}:
        raise CheckpointError(f"the model has heads for {model.task.task} and for pre-training, transformers' have one")
    return ARCHITECTURES[model.task.task]


def _describe_task(task: Task | None) -> dict[str, Any]:
    if task is None:
        return {}
    described: dict[str, Any] = {OURS: dict(task.settings)} if task.settings else {}
    if task.task == "regression":
        described |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": "regression"}
    if not SPECS[task.task].head.outputs:
        numbers = {label: number for number, label in enumerate(task.labels)}
        described |= {"id2label": {str(number): label for label, number in numbers.items()}, "label2id": numbers}
    return described


def _write_vocabulary(model: PortableModel, folder: Path) -> FullTokenizer | None:
    vocabulary = model.vocabulary
    if vocabulary is None:
        logger.info("no vocabulary: put the model's spiece.model or vocab.txt into the folder before using a tokenizer")
        return None
    name = "spiece.model" if vocabulary.is_sentencepiece else "vocab.txt"
    tokenizer = vocabulary.write(folder / name, model.config.vocab_size)
    kind: dict[str, Any] = {"tokenizer_class": "BertTokenizer"}
    if vocabulary.is_sentencepiece:
        build_tokenizer_json(vocabulary.content, vocabulary.do_lower_case).save(str(folder / TOKENIZER))
        kind = {"tokenizer_class": "PreTrainedTokenizerFast", "keep_accents": False}
        kind |= {f"{role}_token": token for role, token in SENTENCEPIECE_SPECIALS.items()}
        kind |= {"bos_token": SENTENCEPIECE_SPECIALS["cls"], "eos_token": SENTENCEPIECE_SPECIALS["sep"]}
    settings = kind | {
        "do_lower_case": vocabulary.do_lower_case,
        "model_max_length": model.config.max_position_embeddings,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }
    write_json(folder / TOKENIZER_CONFIG, settings)
    return tokenizer
