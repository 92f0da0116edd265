"""Model card: README.md of a model's folder, with the metadata that Hugging Face's hub reads.

A card ends in a comment with its own sha256. Only a file with such an end is replaced: all others are somebody's work.
"""

import contextlib
import hashlib
import html
import json
import logging
import math
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from model_utils.errors import ConfigError, DataError, shorten_text
from model_utils.files import write_text
from model_utils.json_files import read_file
from model_utils.yaml_files import MAX_BYTES, parse_yaml, write_yaml
from src.checkpoints.checkpoint_files import folder_of
from src.data.feature_files import RecordSet
from src.tasks import TASKS
from src.tasks.classification_examples import CUSTOM
from src.tasks.finetune_config import FinetuneConfig
from src.tasks.task_info import TaskInfo

logger = logging.getLogger(__name__)
CARD_FILE = "README.md"
METADATA = re.compile(r"---\n(.*?)---\n", re.DOTALL)
SECTION = re.compile(r"^## (.+)\n\n", re.MULTILINE)
SEAL = re.compile(r"<!-- written by albert-mindspore, sha256 [0-9a-f]{64} -->\n\Z")
SETTINGS = "train_steps epoch_num train_batch_size accumulation_steps max_seq_length warmup_ratio seed".split()
# Listed where they are set.
OPTIONS = ("freeze", "label_smoothing", "class_weights", "crf", "mark_capitals", "mark_shared", "pooling")
LIMITS = "- Longer texts are cut, or read in windows.\n- It repeats the prejudices of its training texts.\n"
HUB_TASKS = dict.fromkeys(("classification", "regression", "multi_label"), "text-classification")
HUB_TASKS |= dict.fromkeys(("squad_v1", "squad_v2"), "question-answering")
HUB_TASKS |= {"token_classification": "token-classification", "multiple_choice": "multiple-choice"}
HUB_TASKS["embedding_pairs"] = "sentence-similarity"
HUB_METRICS = {"mcc": "matthews_correlation", "spearman_correlation": "spearmanr", "pearson_correlation": "pearsonr"}


def write_training_card(
    folder: Path,
    config: FinetuneConfig,
    task_info: TaskInfo,
    splits: Mapping[str, RecordSet],
    results: Mapping[str, Any],
) -> None:
    """Write README.md of a finished run; splits: features by name, the training's first; results: eval_results.json."""
    name = folder.resolve().name
    sources = {split: records.manifest.get("source", ()) for split, records in splits.items()}
    files = {split: source if isinstance(source, str) else ", ".join(source) for split, source in sources.items()}
    metrics = {key: value for key, value in results.items() if isinstance(value, float) and math.isfinite(value)}
    baselines = {key: round(value, 4) for key, value in results.get("baselines", {}).items()}
    optimizer = config.optimizer_cfg.optimizer
    learning_rate = getattr(config.optimizer_cfg, optimizer).learning_rate
    settings = {"optimizer": optimizer, "learning_rate": learning_rate or "0 (by the model's width)"}
    settings |= {key: value for key, value in config if key in SETTINGS or (key in OPTIONS and value)}
    start = config.load_pretrain_checkpoint_path
    warnings = "".join(f"- {inline(warning)}\n" for warning in results.get("remarks", ()))
    rows = ((key, round(value, 4), baselines.get(key, "")) for key, value in metrics.items())
    sections = {
        "Task": describe_task(task_info, f"Fine-tuned from {Path(start).name}." if start else "Trained from scratch."),
        "Data": table("split | files | rows", ((split, files[split], splits[split].num_rows) for split in splits)),
        "Settings": table("key of config.yaml | value", settings.items()),
        "Results": table("metric | value | baseline", rows)
        + ("\nThe development split also chose the checkpoint.\n" if config.do_eval else ""),
        "Limits": warnings + LIMITS,
        "Use": describe_use(name, task_info),
    }
    metadata = hub_metadata(task_info, "mindspore") | {"checkpoint": results.get("checkpoint")}
    metadata["language"] = read_card(folder_of(Path(start)))[0].get("language") if start else None
    others = tuple(f"{split}_" for split in splits)  # the first development split's metrics have no prefix
    indexed = [key for key in metrics if not key.startswith(others) and not key.endswith(("threshold", "_thresh"))]
    if indexed:
        values = [{"type": HUB_METRICS.get(key, key), "name": key, "value": metrics[key]} for key in indexed]
        task_name = getattr(config, "task_name", CUSTOM)
        dataset = files[next(iter(splits))] if task_name == CUSTOM else task_name
        result = {"task": {"type": metadata["pipeline_tag"]}, "dataset": {"name": dataset, "type": dataset}}
        metadata["model-index"] = [{"name": name, "results": [result | {"metrics": values}]}]
    write_card(folder, name, metadata, sections)


def write_hugging_face_card(folder: Path, name: str, source: Path, task_info: TaskInfo | None, model: str) -> None:
    """Write README.md of a model converted for the class `model` of transformers: that of its source, changed.

    The folder gets the name `name` later. A card about another checkpoint than `source` is not used.
    """
    metadata, sections = read_card(folder_of(source))
    if metadata.get("checkpoint") not in (None, source.name):
        metadata = {key: metadata.get(key) for key in ("license", "language")}
        sections = {}
    sections = sections or {"Task": describe_task(task_info), "Limits": LIMITS}
    sections["Use"] = code(
        f"from transformers import AutoTokenizer, {model}\n"
        f"tokenizer = AutoTokenizer.from_pretrained({json.dumps(name)})\n"
        f"model = {model}.from_pretrained({json.dumps(name)})"
    )
    write_card(folder, name, metadata | hub_metadata(task_info, "transformers"), sections)


def write_card(folder: Path, title: str, metadata: Mapping[str, Any], sections: Mapping[str, str]) -> None:
    """Write front matter and sections to README.md, unless one is there that somebody else wrote or edited."""
    path = folder / CARD_FILE
    if (path.exists() or path.is_symlink()) and not read_card(folder)[1]:
        logger.info(f"{path} is not replaced by the model's card: it was written or edited by somebody else")
        return
    front_matter = write_yaml({key: value for key, value in metadata.items() if value is not None})
    body = "".join(f"## {name}\n\n{text.strip(chr(10))}\n\n" for name, text in sections.items())
    text = f"---\n{front_matter}---\n\n# {inline(title)}\n\n{body}"
    write_text(path, _sealed(text))


def read_card(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the front matter of a README.md, whoever wrote it, and its sections by title, if write_card did.

    A file that cannot be read, or is too long for a card, has neither.
    """
    path = folder / CARD_FILE
    text = ""
    metadata: Any = None
    with contextlib.suppress(ConfigError, DataError, UnicodeDecodeError, OSError):
        text = read_file(path).decode("utf-8") if path.stat().st_size <= MAX_BYTES else ""
        match = METADATA.match(text)
        metadata = parse_yaml(match[1]) if match else None
    content = SEAL.sub("", text)
    _, *pieces = SECTION.split(content) if text == _sealed(content) else [""]
    return metadata if isinstance(metadata, dict) else {}, dict(zip(pieces[::2], pieces[1::2], strict=True))


def _sealed(text: str) -> str:
    """Return a text followed by a comment with its sha256."""
    return f"{text}<!-- written by albert-mindspore, sha256 {hashlib.sha256(text.encode()).hexdigest()} -->\n"


def hub_metadata(task_info: TaskInfo | None, library: str) -> dict[str, Any]:
    """Return front matter that follows from the task, None for pre-trained weights."""
    task = task_info.task if task_info else ""
    return {"library_name": library, "pipeline_tag": HUB_TASKS.get(task), "tags": ["albert", *filter(None, [task])]}


def describe_task(task_info: TaskInfo | None, origin: str = "") -> str:
    """Return the section on task and labels."""
    if task_info is None:
        return "Pre-trained weights.\n"
    text = f"`{task_info.task}`, up to {task_info.max_seq_length} tokens a row. {inline(origin)}\n"
    return text + (f"\n{code(json.dumps(task_info.labels, ensure_ascii=False))}" if task_info.labels else "")


def describe_use(name: str, task_info: TaskInfo) -> str:
    """Return the command that answers records, and the record's keys."""
    columns = task_info.text_columns
    fields = TASKS[task_info.task].fields
    keys = [columns.get(key, key) for key in fields if key in columns or not fields[key].optional]
    command = f"python predict.py --model {shlex.quote(name)} --input records.jsonl --output answers.jsonl"
    keys_text = json.dumps(keys, ensure_ascii=False)
    return f"{code(command)}\nA record is a JSON object a line, with the keys:\n\n{code(keys_text)}"


def inline(text: Any) -> str:
    """Return a text for one line of Markdown: names of files and labels may hold anything."""
    printable = "".join(character if character.isprintable() else " " for character in shorten_text(str(text), 300))
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", html.escape(printable, quote=False)).strip()


def code(text: str) -> str:
    """Return a text as a block of code."""
    return "".join(f"    {line}\n" for line in text.splitlines())


def table(header: str, rows: Iterable[Iterable[Any]]) -> str:
    """Return a Markdown table; header: names separated by |."""
    lines = [header, re.sub(r"[^|]+", "---", header), *(" | ".join(map(inline, row)) for row in rows)]
    return "".join(f"| {line} |\n" for line in lines)
