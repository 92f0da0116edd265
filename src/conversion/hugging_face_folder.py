"""Reader and writer of Hugging Face's model folders: config.json, weights, tokenizer."""

import logging
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from safetensors.numpy import save

from model_utils.errors import CheckpointError, ConfigError, DataError, first_few, shorten
from model_utils.files import new_folder, write_json
from model_utils.json_files import Schema, matching, read_json
from src.albert_config import OWN_KEYS, AlbertConfig
from src.albert_model import has_initial_pooler
from src.checkpoints.checkpoint_files import Checkpoint
from src.checkpoints.foreign_weights import SAFETENSORS
from src.conversion.checks import check_weights, match_names, resolve_task
from src.conversion.hugging_face_tokens import TOKENIZER, TOKENIZER_CONFIG, find_added_tokens
from src.conversion.tokenizer_json import build_tokenizer_json, extract_vocabulary, lower_cases
from src.conversion.torch_weights import read_weights, refuse_pointer
from src.conversion.weight_names import TIED_COPIES, bert_names, hugging_face_names
from src.model_card import write_hugging_face_card
from src.model_folder import ModelFolder
from src.tasks import HEADS
from src.tasks.classification import CLASSIFICATION, REGRESSION
from src.tasks.embedding_pairs import EMBEDDING_PAIRS
from src.tasks.entities import find_scheme
from src.tasks.multi_label import MULTI_LABEL
from src.tasks.question_answering import SQUAD_V1
from src.tasks.task_info import TaskInfo
from src.tasks.token_classification import TOKEN_CLASSIFICATION
from src.text.sentence_piece import SENTENCEPIECE_SPECIALS
from src.tokenization import FullTokenizer, open_tokenizer

logger = logging.getLogger(__name__)
CONFIG = "config.json"
SENTENCEPIECE, WORDPIECE = "spiece.model", "vocab.txt"
SETTINGS_KEY = "albert_mindspore"  # settings of task.json beside task and labels; transformers keeps them unused
ALBERT, BERT = "albert", "bert"  # model types; prefixes of the backbone's names, except in AlbertModel and BertModel
WORD_EMBEDDINGS = "embeddings.word_embeddings.weight"  # every model has it once
ROWS_OF_TOKENS = ("albert.embeddings.word_embeddings", "mlm.bias")  # weights with a row for each token
SMALLEST_MULTIPLE, LARGEST_MULTIPLE = 8, 512  # embeddings may be padded to a multiple (pad_to_multiple_of)
POSITION_IDS = "embeddings.position_ids"  # 0, 1, 2, ...: a constant in older files
GENERIC_TOKENIZERS = ("PreTrainedTokenizerFast", "TokenizersBackend")  # classes that use tokenizer.json as it is
OWN_TOKENIZERS = ("AlbertTokenizer", "AlbertTokenizerFast", "BertTokenizer", "BertTokenizerFast")
TOKENIZERS = (*OWN_TOKENIZERS, *GENERIC_TOKENIZERS)
WITHOUT_POOLER = ("ForMaskedLM", "ForQuestionAnswering", "ForTokenClassification")  # ends of names of classes
NOT_IN_BERT = ("embedding_size", "num_hidden_groups", "inner_group_num")
# The class of transformers for each task of a fine-tuned model; SQuAD v2's beam search has none.
ARCHITECTURES = {name: head.hugging_face for name, head in HEADS.items() if head.hugging_face}
HEAD_NAMES = dict.fromkeys(f"{HEADS[name].module}.{weight}" for name in ARCHITECTURES for weight in ("weight", "bias"))
# problem_type of tasks that share their class with another task, which is the one in TASK_OF
PROBLEM_TYPES = {REGRESSION.name: "regression", MULTI_LABEL.name: "multi_label_classification"}
TASK_OF = {architecture: task for task, architecture in ARCHITECTURES.items() if task not in PROBLEM_TYPES}
TASK_OF |= {architecture.replace("Albert", "Bert"): task for architecture, task in TASK_OF.items()}
Number = Annotated[str, matching("[0-9]{1,9}", "a number from 0")]


class ConfigSchema(Schema):
    """Content of config.json without the architecture, which src/albert_config.py reads."""

    architectures: list[str] | None = None
    hidden_act: str | None = None
    problem_type: Literal["regression", "single_label_classification", "multi_label_classification"] | None = None
    id2label: dict[Number, str | int] | None = None
    albert_mindspore: dict[str, Any] = Field(default_factory=dict)


class TokenizerSettingsSchema(Schema):
    """Content of tokenizer_config.json, with the values that src.tokenization can have.

    Attributes:
        strip_accents: None: as do_lower_case.
        added_tokens_decoder: added tokens by their ids.
    """

    tokenizer_class: Annotated[str, matching("|".join(TOKENIZERS), f"one of {', '.join(TOKENIZERS)}")] | None = None
    do_lower_case: bool = True
    strip_accents: bool | None = None
    keep_accents: Literal[False] = False
    remove_space: Literal[True] = True
    tokenize_chinese_chars: Literal[True] = True
    added_tokens_decoder: dict[Number, dict[str, Any]] = Field(default_factory=dict)


def read_hugging_face(folder: Path, task: str = "", labels: tuple[str, ...] = ()) -> ModelFolder:
    """Return the model in a folder with config.json and weights, and its vocabulary if the folder has one."""
    config = AlbertConfig.from_json(folder / CONFIG)
    described = read_json(folder / CONFIG, ConfigSchema, CheckpointError)
    # from_json may read the file as google's, whose gelu is another function.
    config = config.replace(hidden_act=described.hidden_act or config.hidden_act)
    model_type = BERT if config.is_bert else ALBERT
    weights = {_current_name(name): value for name, value in read_weights(folder).items()}
    weights = _without_prefix(weights, model_type, folder)
    if WORD_EMBEDDINGS in weights:  # saved by AlbertModel or BertModel
        weights = {f"{model_type}.{name}": value for name, value in weights.items()}
    if not config.is_bert and any("encoder.layer." in name for name in weights):
        raise CheckpointError(f"{folder} has the weights of a BERT: its {CONFIG} needs model_type: bert")
    weight_count = len(weights)
    weights.pop(f"{model_type}.{POSITION_IDS}", None)
    for copy, original in TIED_COPIES.items():
        if copy in weights and original in weights:
            is_unused = copy.endswith(".bias") and not weights[copy].any()  # until 2020 the two biases were summed
            if not is_unused and not np.array_equal(weights[copy], weights[original]):
                raise CheckpointError(f"{folder}: {copy} differs from {original}; here they are tied")
            del weights[copy]
    matched = match_names(_names(config), weights, weight_count - len(weights), folder)
    values = {name: weights[source_name] for name, source_name in matched.items()}
    for name, value in values.items():
        if value.dtype != np.float32:
            raise CheckpointError(f"{folder}: {matched[name]} is {value.dtype}, a weight is a float")
    check_weights(values, config, folder)
    stated = _stated_task(described, len(values.get("classifier.bias", ())), folder / CONFIG)
    task_info = resolve_task(values, stated, task, labels, folder, folder / CONFIG)
    if task_info is not None and task_info.task == SQUAD_V1.name:
        logger.info(f"{folder} does not say whether it was trained on SQuAD 2.0: here it answers every question")
    if task_info is not None and task_info.task == TOKEN_CLASSIFICATION.name:
        logger.info(f"{folder}: tags are {find_scheme(task_info.labels).value}: {first_few(task_info.labels, 10)}")
    tokenizer = _read_vocabulary(folder)
    if tokenizer is not None:
        values = _fit_rows(values, tokenizer, config.vocab_size, folder)
        config = config.replace(vocab_size=tokenizer.vocab_size)
    return ModelFolder(config, tokenizer, task_info, checkpoint=Checkpoint(folder, values, {}))


def _current_name(name: str) -> str:
    """Return the name that today's transformers has for a weight; bert-base-uncased has that of the first ones."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _names(config: AlbertConfig) -> dict[str, str]:
    """Return transformers' name of every weight, by this project's name."""
    if config.is_bert:
        names = bert_names(config.num_hidden_layers)
    else:  # without shared weights, every layer is a group
        groups = config.num_hidden_layers if config.share_parameters == "none" else config.num_hidden_groups
        names = hugging_face_names(groups, config.inner_group_num)
    return names | {name: name for name in HEAD_NAMES}


def _without_prefix(weights: dict[str, np.ndarray], model_type: str, folder: Path) -> dict[str, np.ndarray]:
    """Return the weights without a prefix of all names: DataParallel's `module.`, torch.compile's `_orig_mod.`."""
    prefixes = {name.removesuffix(WORD_EMBEDDINGS) for name in weights if name.endswith(WORD_EMBEDDINGS)}
    prefix = prefixes.pop().removesuffix(f"{model_type}.") if len(prefixes) == 1 else ""
    if not prefix or not all(name.startswith(prefix) for name in weights):
        return weights
    logger.info(f"{folder}: all names of weights begin with {shorten(prefix)}, which is left out")
    return {name.removeprefix(prefix): value for name, value in weights.items()}


def _stated_task(described: ConfigSchema, outputs: int, file: Path) -> dict[str, Any]:
    """Return the settings of task.json that config.json states; {} for a pre-trained model.

    Args:
        outputs: number of outputs of a classifier, 0 for none.
        file: config.json, for errors.
    """
    tasks = [TASK_OF[name] for name in described.architectures or () if name in TASK_OF]
    if not tasks:
        if not described.albert_mindspore:  # an encoder whose vectors were not trained
            return {}
        return described.albert_mindspore | {"task": EMBEDDING_PAIRS.name}
    task = tasks[0]
    if task == CLASSIFICATION.name and described.problem_type == PROBLEM_TYPES[MULTI_LABEL.name]:
        task = MULTI_LABEL.name
    elif task == CLASSIFICATION.name and outputs == 1:
        return described.albert_mindspore | {"task": REGRESSION.name}
    elif task == CLASSIFICATION.name and described.problem_type == PROBLEM_TYPES[REGRESSION.name]:
        raise CheckpointError(f"{file}: problem_type is regression with {outputs} outputs; allowed here is one")
    labels = {int(number): str(label) for number, label in (described.id2label or {}).items()}
    if labels.keys() != set(range(len(labels))):
        raise CheckpointError(f"{file}: id2label has the numbers {first_few(map(str, labels))}, needed are 0, 1, ...")
    return described.albert_mindspore | {"task": task, "labels": [labels[number] for number in sorted(labels)]}


def _fit_rows(
    values: dict[str, np.ndarray], tokenizer: FullTokenizer, rows: int, folder: Path
) -> dict[str, np.ndarray]:
    """Return the weights without rows that pad the embedding to a multiple of a power of two.

    Raises:
        DataError: there are fewer rows than entries, or more than such padding adds.
    """
    size = tokenizer.vocab_size
    spare = rows - size
    multiple = min(rows & -rows, LARGEST_MULTIPLE)  # largest power of two that divides the rows
    if spare and (multiple < SMALLEST_MULTIPLE or not 0 < spare < multiple):
        raise DataError(
            f"the tokenizer in {folder} has {size} entries, {len(tokenizer.added_tokens)} of them added tokens, and "
            f"{CONFIG} says {rows} (vocab_size): put the tokenizer's files that belong to the weights there, or resize "
            "the embedding in transformers"
        )
    if not spare:
        return values
    logger.info(f"{folder}: {rows} rows of the embedding, {size} entries: {spare} spare rows at its end are left out")
    return values | {name: values[name][:size] for name in ROWS_OF_TOKENS if name in values}


def _read_vocabulary(folder: Path) -> FullTokenizer | None:
    file = folder / TOKENIZER_CONFIG
    settings = read_json(file, TokenizerSettingsSchema) if file.is_file() else TokenizerSettingsSchema()
    is_generic = settings.tokenizer_class in GENERIC_TOKENIZERS
    lower = lower_cases(folder / TOKENIZER) if is_generic else settings.do_lower_case
    if "do_lower_case" in settings.model_fields_set and settings.do_lower_case != lower:
        raise DataError(f"{file}: do_lower_case is {settings.do_lower_case}, but {TOKENIZER} has {lower}")
    if settings.strip_accents not in (None, lower):
        raise DataError(f"{file}: strip_accents is {settings.strip_accents}, the tokenization here has {lower}")
    for name in (SENTENCEPIECE, WORDPIECE, TOKENIZER):
        refuse_pointer(folder / name)
    content = None
    is_sentencepiece = (folder / SENTENCEPIECE).is_file()
    if not is_sentencepiece and not (folder / WORDPIECE).is_file():
        if not (folder / TOKENIZER).is_file():
            return None
        content, is_sentencepiece = extract_vocabulary(folder / TOKENIZER)
    vocabulary = folder / (SENTENCEPIECE if is_sentencepiece else WORDPIECE)
    tokenizer = open_tokenizer(vocabulary, lower, is_sentencepiece, content)
    added = find_added_tokens(folder, tokenizer, is_generic)
    return tokenizer.with_added_tokens(added) if added else tokenizer


def write_hugging_face(model: ModelFolder, path: Path) -> None:
    """Write a folder for from_pretrained of the model's class in transformers."""
    architecture = _architecture(model)
    config = model.architecture
    model_type = BERT if config.is_bert else ALBERT
    names = _names(config)
    values = {names[name]: np.ascontiguousarray(value) for name, value in model.weights.items()}
    if architecture.endswith(WITHOUT_POOLER) and has_initial_pooler(config, model.weights):
        values = {name: value for name, value in values.items() if not name.startswith(f"{model_type}.pooler.")}
    if architecture.endswith("Model"):
        values = {name.removeprefix(f"{model_type}."): value for name, value in values.items()}
    dtype = next(iter(values.values())).dtype.name
    described = {"architectures": [architecture], "model_type": model_type, "dtype": dtype, **_sizes(config)}
    if tokenizer := model.tokenizer:
        ids = {"pad": tokenizer.pad_id, "bos": tokenizer.cls_id, "eos": tokenizer.sep_id}
        described |= {f"{role}_token_id": number for role, number in ids.items()}
    with new_folder(path) as folder:
        (folder / SAFETENSORS).write_bytes(save(values, metadata={"format": "pt"}))  # save_file raises no OSError
        write_json(folder / CONFIG, described | _describe_task(model.task_info))
        _write_vocabulary(tokenizer, config, folder)
        write_hugging_face_card(folder, path.resolve().name, model.loaded.path, model.task_info, architecture)
    logger.info(f"{len(values)} weights as {architecture}")


def _sizes(config: AlbertConfig) -> dict[str, Any]:
    """Return the architecture as keys of transformers' AlbertConfig, or of its BertConfig."""
    sizes = {key: value for key, value in config.to_dict().items() if key not in OWN_KEYS}
    if config.is_bert:
        sizes["classifier_dropout"] = sizes.pop("classifier_dropout_prob")
        return {key: value for key, value in sizes.items() if key not in NOT_IN_BERT}
    if config.share_parameters == "none":
        sizes["num_hidden_groups"] = config.num_hidden_layers
    return sizes


def _architecture(model: ModelFolder) -> str:
    """Return the class of transformers for a model."""
    config = model.architecture
    task = model.task_info.task if model.task_info and HEADS[model.task_info.task].module else ""
    modules = {name.partition(".")[0] for name in model.weights}
    refusals = {
        "relative positions (use_relative_positions)": config.use_relative_positions,
        "shared layers without embedding_projection": not (config.embedding_projection or config.is_bert),
        f"share_parameters {config.share_parameters}": config.share_parameters not in ("all", "none"),
        "a hidden layer before its classifier": "classifier_hidden" in modules,
        "a conditional random field (crf)": "crf" in modules,
        f"a head for {task}": bool(task) and task not in ARCHITECTURES,
        f"heads for {task} and for pre-training": bool(task and modules & {"mlm", "sop"}),
    }
    for form, is_refused in refusals.items():
        if is_refused:
            raise CheckpointError(f"the model has {form}: transformers has neither an ALBERT nor a BERT with this")
    for key in ("mark_capitals", "mark_shared"):
        if getattr(model.task_info, key, False):
            raise CheckpointError(f"the model reads token types with {key}: transformers' tokenizers do not set them")
    if not task and modules & {head.module for head in HEADS.values()}:
        raise ConfigError(key="task", value="", hint="give what the model is for, which a Hugging Face folder says")
    if task:
        name = ARCHITECTURES[task]
    elif "sop" in modules:
        name = "AlbertForPreTraining"
    else:
        name = "AlbertForMaskedLM" if "mlm" in modules else "AlbertModel"
    return name.replace("Albert", "Bert") if config.is_bert else name


def _describe_task(task_info: TaskInfo | None) -> dict[str, Any]:
    """Return the settings of task.json as keys of config.json."""
    if task_info is None:
        return {}
    described: dict[str, Any] = {}
    if settings := {key: value for key, value in task_info.explicit_values().items() if key not in ("task", "labels")}:
        described[SETTINGS_KEY] = settings
    if problem_type := PROBLEM_TYPES.get(task_info.task):
        described["problem_type"] = problem_type
    if labels := ("LABEL_0",) if task_info.task == REGRESSION.name else task_info.labels:
        described["id2label"] = {str(number): label for number, label in enumerate(labels)}
        described["label2id"] = {label: number for number, label in enumerate(labels)}
    return described


def _write_vocabulary(tokenizer: FullTokenizer | None, architecture: AlbertConfig, folder: Path) -> None:
    if tokenizer is None:
        logger.info("no vocabulary: put the model's spiece.model or vocab.txt into the folder before using a tokenizer")
        return
    settings: dict[str, Any] = {
        "do_lower_case": tokenizer.do_lower_case,
        "model_max_length": architecture.max_position_embeddings,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    }
    (folder / (SENTENCEPIECE if tokenizer.is_sentencepiece else WORDPIECE)).write_bytes(tokenizer.content)
    if tokenizer.is_sentencepiece:
        described = build_tokenizer_json(tokenizer.content, tokenizer.do_lower_case, tokenizer.added)
        (folder / TOKENIZER).write_text(described.to_str(pretty=True), encoding="utf-8")
        settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "keep_accents": False}
        settings |= {f"{role}_token": token for role, token in SENTENCEPIECE_SPECIALS.items()}
        settings |= {"bos_token": SENTENCEPIECE_SPECIALS["cls"], "eos_token": SENTENCEPIECE_SPECIALS["sep"]}
    else:
        settings["tokenizer_class"] = "BertTokenizer"
        tokens = {str(token.id): token.model_dump(exclude={"id"}) for token in tokenizer.added_tokens}
        settings |= {"added_tokens_decoder": tokens} if tokens else {}
    if specials := [token.content for token in tokenizer.added_tokens if token.special]:
        settings["additional_special_tokens"] = specials
    write_json(folder / TOKENIZER_CONFIG, settings)
