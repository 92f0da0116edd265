"""Generated faults: whatever stands in a configuration, a small file, a record, a table or a checkpoint, the answer is
a result or a sentence, soon, and memory does not grow.

Nothing is compiled: a network that gives zeros stands in for the real one.
"""

import contextlib
import gzip
import hashlib
import json
import lzma
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import zstandard
from fastapi.testclient import TestClient
from hypothesis import strategies as st
from mindspore import Tensor

from model_utils import convert_ckpt
from model_utils.backend import Backend
from model_utils.config import check_output_folder
from model_utils.convert_ckpt import ConvertConfig
from model_utils.schema import Config, leaves_of, load_config, write_config
from model_utils.yaml_files import write_yaml
from src.albert_config import AlbertConfig
from src.checkpoints.checkpoint_files import (
    best_checkpoint,
    find_checkpoint,
    load_backbone,
    newest_checkpoint,
    read_checkpoint,
)
from src.conversion.hugging_face_folder import read_hugging_face
from src.conversion.tokenizer_json import extract_vocabulary
from src.conversion.torch_weights import read_weights
from src.create_finetune_data import ClassificationSplit, TextColumns, read_examples
from src.create_squad_data import read_squad
from src.data.feature_cache import cached_features
from src.data.feature_files import open_records
from src.data.tfrecords import check_tfrecord
from src.finetune_eval_model import SpanSearchScores
from src.inference.exported_model import load_exported
from src.inference.file_answers import answer_records
from src.inference.predictor import Predictor
from src.inference.record_files import check_inputs, check_output, read_records
from src.inference.server import Limits, create_app
from src.model_folder import ModelFolder, load_tokenizer, read_task_info
from src.tasks import TASKS
from src.tasks.ner_data import EntityColumns, read_sentences
from src.tasks.race_data import read_race
from src.tasks.task_info import TaskInfo
from src.text.corpus import iter_documents
from src.tokenization import build_tokenizer
from src.training.pretrain_config import PretrainConfig
from src.training.run_folder import check_run_folder
from src.training.run_log import read_log
from tests.faults.cases import (
    COUNTS,
    NUMBERS,
    OTHER_KINDS,
    SCALARS,
    TEXTS,
    VALUES,
    damaged,
    explore,
    only_sentences,
    put,
)
from tests.helpers.commands import COMMANDS
from tests.helpers.conversions import random_values, write_hugging_face
from tests.helpers.tfrecord_files import write_tfrecord
from tests.helpers.trained_folders import ARCHITECTURE, TASK_INFOS, make_folder, make_task_info, write_vocabulary


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


# --- configurations ---


@st.composite
def configurations(draw: Any) -> tuple[type[Config], bytes, list[str]]:
    """A command, the content of its yaml file, and words of the command line."""
    kind = draw(st.sampled_from(COMMANDS))
    known = st.sampled_from([key for key, _ in leaves_of(kind)])
    keys = st.one_of(known, known, known, known, TEXTS)
    tree = draw(st.dictionaries(keys, VALUES, max_size=3))
    content = encoded(write_yaml(tree))
    if draw(st.booleans()):
        lines = draw(st.lists(st.tuples(keys, TEXTS), max_size=3))
        content = encoded("".join(f"{key}: {value}\n" for key, value in lines))
    if draw(st.booleans()):
        content = draw(damaged(content))
    given = draw(st.lists(st.tuples(keys, st.one_of(SCALARS.map(str), TEXTS)), max_size=4))
    words = [
        word for key, value in given for word in ([f"--{key}={value}"] if draw(st.booleans()) else [f"--{key}", value])
    ]
    return kind, content, words


@COUNTS
def test_configurations(tmp_path: Path, count: int) -> None:
    def check(case: tuple[type[Config], bytes, list[str]]) -> None:
        kind, content, words = case
        put(tmp_path / "run.yaml", content)
        config = load_config(kind, ["--config_path", str(tmp_path / "run.yaml"), *words])
        write_config(config, tmp_path / "written.yaml")
        assert load_config(kind, ["--config_path", str(tmp_path / "written.yaml")]) == config
        config.check_required()

    explore(count, configurations(), check)


# --- small files ---


def quiet(_: str) -> None:
    """Says nothing."""


def make_features(folder: Path) -> Path:
    """facts.json of a set of feature files."""
    folder.mkdir()
    tokenizer = build_tokenizer(write_vocabulary(folder), "", True)
    table = folder / "train.tsv"
    table.write_text("text_a\tlabel\n" + "a b\tx\nc\ty\n" * 3)
    examples = read_examples(table, TextColumns())
    split = ClassificationSplit("train", examples, ["x", "y"], tokenizer, 16)
    cached_features(folder, "classification", {}, split.features)
    return next(folder.glob("*.facts.json"))


def describe(run: Path, exported: Path) -> dict[str, Any]:
    """Return the description that an export of the folder would have."""
    tokenizer = load_tokenizer(run)
    exported.with_name("model.vocab.txt").write_bytes(tokenizer.file.read_bytes())
    return read_task_info(run).clipped_to(ARCHITECTURE).values_with_defaults() | {
        "format_version": 1,
        "sha256": hashlib.sha256(exported.read_bytes()).hexdigest(),
        "inputs": [{"name": name, "dtype": "int32"} for name in SpanSearchScores.input_columns],
        "outputs": [{"name": name, "per_token": False} for name in SpanSearchScores.output_names],
        "vocabulary": {"file": "model.vocab.txt", "sha256": tokenizer.sha256, "size": tokenizer.vocab_size},
        "do_lower_case": True,
        "architecture": ARCHITECTURE.saved_dict(),
    }


def write_small_files(folder: Path) -> dict[Path, Any]:
    """Whole files by path, and what reads each of them."""
    make_folder(folder / "run", "squad_v2")
    make_folder(folder / "tags", "token_classification")
    ready = make_features(folder / "features")
    exported, run = folder / "model.mindir", folder / "run"
    exported.write_bytes(b"graph")
    (folder / "model.json").write_text(json.dumps(describe(run, exported)))
    (run / "best_checkpoint.json").write_text('{"checkpoint": "albert-1.ckpt", "step": 1, "accuracy": 0.5}')
    (run / "train_log.jsonl").write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": null, "lr": 1e-5}\n')
    config = PretrainConfig(data_dir="data", save_checkpoint_path=str(folder / "begun"))
    write_config(config, folder / "begun/config.yaml")
    weights = random_values(ARCHITECTURE, ("albert.", "classifier."), 2)
    described = {"architectures": ["AlbertForSequenceClassification"], "id2label": {"0": "a", "1": "b"}}
    theirs = write_hugging_face(folder / "theirs", ARCHITECTURE, weights, **described)
    tokens = (run / "vocab.txt").read_text().split()
    vocabulary = {"model": {"type": "WordPiece", "vocab": {token: number for number, token in enumerate(tokens)}}}
    (theirs / "tokenizer.json").write_text(json.dumps(vocabulary))
    (theirs / "tokenizer_config.json").write_text('{"do_lower_case": true, "keep_accents": false}')
    parts = folder / "parts"
    parts.mkdir()
    (parts / "a.safetensors").write_bytes((theirs / "model.safetensors").read_bytes())
    (parts / "model.safetensors.index.json").write_text('{"weight_map": {"albert.pooler.weight": "a.safetensors"}}')

    def answer(folder: Path) -> None:
        if task_info := read_task_info(folder):  # None: it is absent
            Predictor(task_info.clipped_to(ARCHITECTURE), load_tokenizer(run), None, ARCHITECTURE)

    def describes() -> None:
        load_exported(exported, backend=Backend.COMPOSED)  # the graph itself computes, of which nothing is asked here

    return {
        run / "tokenizer_config.json": lambda: load_tokenizer(run),
        run / "task.json": lambda: answer(run),
        folder / "tags/task.json": lambda: answer(folder / "tags"),
        run / "albert_config.json": lambda: find_checkpoint(run),
        run / "best_checkpoint.json": lambda: best_checkpoint(run),
        run / "train_log.jsonl": lambda: read_log(run, 5),
        folder / "begun/config.yaml": lambda: check_run_folder(folder / "begun", config),
        folder / "model.json": describes,
        ready: lambda: open_records(ready.parent, "classification").columns,
        theirs / "config.json": lambda: read_hugging_face(theirs),
        theirs / "tokenizer_config.json": lambda: read_hugging_face(theirs),
        theirs / "tokenizer.json": lambda: extract_vocabulary(theirs / "tokenizer.json"),
        parts / "model.safetensors.index.json": lambda: read_weights(parts),
    }


@st.composite
def damaged_files(draw: Any, whole: list[bytes]) -> tuple[int, bytes | str]:
    """Which of the files is damaged, and what stands in its place: bytes or a word of OTHER_KINDS."""
    number = draw(st.integers(0, len(whole) - 1))
    content, how = whole[number], draw(st.sampled_from(["bytes", "value", "value", "value", "other"]))
    if how == "other":
        return number, draw(st.sampled_from([*OTHER_KINDS, b"", b"{}", b"[]", b"null", b"\xff", b"[" * 1000]))
    if how == "bytes" or not content.startswith(b"{"):
        return number, draw(damaged(content))
    tree = json.loads(content.splitlines()[0] if b"}\n{" in content else content)
    tree.pop("checksum", None)
    node = tree
    while True:
        key = draw(st.sampled_from(sorted(node)))
        if not isinstance(node[key], dict) or not node[key] or draw(st.booleans()):
            break
        node = node[key]
    if draw(st.integers(0, 3)):
        node[key] = draw(VALUES)
    else:
        del node[key]
    return number, encoded(json.dumps(tree))


@COUNTS
def test_small_files(tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("src.inference.exported_model.load_mindir", lambda *_: None)
    readers = write_small_files(tmp_path)
    files = list(readers)
    whole = [file.read_bytes() for file in files]
    for read in readers.values():  # else damage would only ever be met where reading has failed already
        read()

    def check(case: tuple[int, bytes | str]) -> None:
        number, content = case
        put(files[number], content)
        try:
            readers[files[number]]()
        finally:
            put(files[number], whole[number])

    explore(count, damaged_files(whole), check)


# --- paths ---


@pytest.mark.parametrize("name", [".", "..", "/", "there/..", "n" * 300, "n" * 255, "~", *OTHER_KINDS])
def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    if name in OTHER_KINDS:
        put(Path(name), name)
    for read in (
        lambda: find_checkpoint(Path(name)),
        lambda: load_tokenizer(Path(name)),
        lambda: ModelFolder.load(name),
        lambda: load_exported(Path(f"{name}.mindir")),
        lambda: convert_ckpt.main(ConvertConfig(source="hf", target="mindspore", input=name, output="new")),
        lambda: convert_ckpt.main(ConvertConfig(source="mindspore", target="hf", input=name, output=name)),
        lambda: convert_ckpt.main(ConvertConfig(source="tf", target="mindspore", input=name, output="new")),
        lambda: check_inputs([(name, "auto")]),
        lambda: check_inputs([(name, "table")]),
        lambda: check_output(name, name),
        lambda: check_output_folder(Path(name), "key"),
        lambda: build_tokenizer(name, "", True),
        lambda: build_tokenizer("", name, True),
        lambda: AlbertConfig.from_json(name),
        lambda: load_config(PretrainConfig, ["--config_path", name]),
    ):
        only_sentences(read)
    assert {path.name for path in tmp_path.iterdir()} <= {"there", name}


# --- records ---


class Zeros:
    """A network of a task's columns and outputs, without parameters."""

    def __init__(self, task_info: TaskInfo) -> None:
        scores = TASKS[task_info.task].scores(ARCHITECTURE, task_info)
        self.task_info = task_info
        self.input_columns, self.output_names = scores.input_columns, scores.output_names
        self.per_token_outputs = scores.per_token_outputs
        self.portable = True

    def __call__(self, *columns: Tensor) -> Any:
        (rows, length), further = columns[0].shape, columns[-1].shape[1]
        task, labels = self.task_info.task, max(1, len(self.task_info.labels))
        starts, ends = self.task_info.searched_starts, getattr(self.task_info, "end_n_top", 0)
        shapes = {
            "logits": (rows, {"multiple_choice": 4}.get(task, labels)),
            "sequence_output": (rows, length, ARCHITECTURE.hidden_size),
            "pooled_output": (rows, ARCHITECTURE.hidden_size),
            "mlm_logits": (rows, further, ARCHITECTURE.vocab_size),
            "start_logits": (rows, length),
            "end_logits": (rows, length),
            "start_top_log_probs": (rows, starts),
            "start_top_index": (rows, starts),
            "end_top_log_probs": (rows, starts * ends),
            "end_top_index": (rows, starts * ends),
            "cls_logits": (rows,),
        }
        if task == "token_classification":
            shapes["logits"] = (rows, length, labels)
        outputs = tuple(Tensor(np.zeros(shapes[name], np.float32)) for name in self.output_names)
        return outputs if len(outputs) > 1 else outputs[0]


KEYS = """id text text_a text_b tokens context question article options label prediction error line""".split()


def whole_record(task: str, text: str = "[MASK] a b") -> dict[str, Any]:
    """One that is answered."""
    return {name: [text] * 4 if field.list_size else text for name, field in TASKS[task].fields.items()}


@st.composite
def record_files(draw: Any) -> tuple[str, str, bytes]:
    """A task, the ending of a file, and its content."""
    task, suffix = draw(st.sampled_from(list(TASK_INFOS))), draw(st.sampled_from([".jsonl", ".tsv", ".csv", ".txt"]))
    text = st.one_of(TEXTS, st.sampled_from(["a [MASK] b", "who was it?", "b" * 200, "[MASK]" * 50, "a\u0301\u200b中"]))
    value = st.one_of(text, st.lists(text, min_size=4, max_size=4), VALUES)
    records = draw(st.lists(st.dictionaries(st.one_of(st.sampled_from(KEYS), TEXTS), value, max_size=6), max_size=4))
    whole = whole_record(task, draw(text))
    content = encoded("\n".join(map(json.dumps, [whole, *(records if draw(st.booleans()) else [])])))
    if suffix != ".jsonl":
        cells = draw(st.lists(st.lists(text, min_size=len(whole), max_size=len(whole)), max_size=4))
        cells += [[str(cell) for cell in record.values()] for record in records]
        rows = [list(whole), ["[MASK] a"] * len(whole), *cells]
        content = encoded("\n".join(("," if suffix == ".csv" else "\t").join(row) for row in rows))
    return task, suffix, draw(damaged(content)) if draw(st.booleans()) else content


@COUNTS
def test_records(tmp_path: Path, count: int) -> None:
    tokenizer = build_tokenizer(write_vocabulary(tmp_path), "", True)
    infos = {task: make_task_info(task).clipped_to(ARCHITECTURE) for task in TASK_INFOS}
    predictors = {task: Predictor(info, tokenizer, Zeros(info), ARCHITECTURE) for task, info in infos.items()}
    servers = {task: TestClient(create_app(predictor, Limits())) for task, predictor in predictors.items()}
    answered, replies = Counter(), Counter()

    def feed(pipe: Path, content: bytes) -> None:  # blocks when nobody reads
        with contextlib.suppress(OSError):  # the reader may stop early
            pipe.write_bytes(content)

    def check(case: tuple[str, str, bytes]) -> None:
        task, suffix, content = case
        file, output = tmp_path / f"in{suffix}", tmp_path / "out.jsonl"
        through_a_pipe = suffix in (".jsonl", ".txt") and len(content) % 2 == 1
        put(file, "pipe" if through_a_pipe else content)
        if through_a_pipe:
            Thread(target=feed, args=[file, content], daemon=True).start()
        check_inputs([(str(file), "auto")])
        answer_records(predictors[task], read_records(str(file), "auto", "text_a"), str(output))
        for line in output.read_text(encoding="utf-8").split("\n")[:-1]:
            answer = json.loads(line)
            if "error" not in answer:
                answered.update({task, suffix} & {*TASK_INFOS, ".tsv", ".csv"})

    def ask(case: tuple[str, str, bytes]) -> None:
        task, _, content = case
        body = b'{"records": [' + b",".join(content.splitlines()) + b"]}"
        reply = servers[task].post("/predict", content=body, headers={"content-type": "application/json"})
        assert reply.status_code < 500 and isinstance(json.loads(reply.content), dict)
        replies[reply.status_code] += 1

    for task in TASK_INFOS:  # else generated records might meet nothing but the first check
        record = whole_record(task)
        assert "error" not in predictors[task].predict([record])[0], task
        assert servers[task].post("/predict", json={"records": [record]}).status_code == 200, task
        content = encoded(json.dumps(record))
        check((task, ".jsonl", content + b"\n" * (len(content) % 2)))  # an odd length would come through a pipe
    for suffix, separator in ((".tsv", "\t"), (".csv", ",")):
        check(("classification", suffix, encoded(f"text_a{separator}text_b\na{separator}b")))
    assert set(answered) == {*TASK_INFOS, ".tsv", ".csv"}, answered
    explore(count, record_files(), check)
    explore(count, record_files(), ask)
    assert 200 in replies, replies


# --- tables and texts of training ---


def read_labelled(path: Path, tokenizer: Any) -> None:
    examples = read_examples(path, TextColumns("text_a", "text_b", "label"))
    ClassificationSplit("train", examples, None, tokenizer, 16).features()


SQUAD = {"data": [{"paragraphs": [{"context": "a b", "qas": [{"id": "1", "question": "a", "answers": []}]}]}]}
SQUAD["data"][0]["paragraphs"][0]["qas"][0]["is_impossible"] = True
RACE = {"article": "a", "questions": ["b"], "options": [["a", "b", "c", "d"]], "answers": ["A"]}


def whole_texts(folder: Path) -> dict[str, tuple[str, bytes]]:
    """The ending and the content of a file that each reader of test_training_texts reads, by its name."""
    tfrecord = write_tfrecord(folder / "whole.tfrecord", [b"a", b"b"]).read_bytes()
    return {
        "labelled": (".tsv", b"text_a\ttext_b\tlabel\na b\tc\t1.5\nb\ta\t2\n"),
        "sentences": (".txt", b"Ann B-PER\nsaw O\n\nLyon B-LOC\n"),
        "names": (".csv", b"text_a,label\nwe had soup,soup\n"),
        "squad": (".json", encoded(json.dumps(SQUAD))),
        "race": (".txt", encoded(json.dumps(RACE))),
        "documents": (".gz", gzip.compress(b"a b\n\nb\n" * 50)),
        "tfrecord": (".tfrecord", tfrecord),
    }


@st.composite
def text_files(draw: Any, whole: list[tuple[str, bytes]]) -> tuple[str, bytes | str]:
    """The ending of a file of texts, and its content: one of the whole ones, which may be damaged, or made up."""
    if draw(st.booleans()):
        suffix, content = draw(st.sampled_from(whole))
        return suffix, draw(damaged(content)) if draw(st.booleans()) else content
    suffix = draw(st.sampled_from([".tsv", ".csv", ".jsonl", ".xlsx", ".xls", ".txt", ".json"]))
    if draw(st.integers(0, 9)) == 0:
        return suffix, draw(st.sampled_from(OTHER_KINDS))
    cells = st.one_of(TEXTS, NUMBERS.map(str), st.sampled_from(["B-PER", "O", "a b", "1.5", "1e300"]))
    rows = [["text_a", "text_b", "label"], *draw(st.lists(st.lists(cells, min_size=3, max_size=3), max_size=4))]
    content = encoded("\n".join(("," if suffix == ".csv" else "\t").join(row) for row in rows))
    if suffix in (".jsonl", ".json"):
        content = encoded("\n".join(json.dumps(dict(zip(rows[0], row, strict=True))) for row in rows[1:]))
    if draw(st.booleans()):
        tree = draw(st.sampled_from([SQUAD, RACE]))
        tree = {key: draw(VALUES) if draw(st.integers(0, 2)) == 0 else value for key, value in tree.items()}
        content = encoded(json.dumps(tree))
    return suffix, draw(damaged(content)) if draw(st.booleans()) else content


@COUNTS
def test_training_texts(tmp_path: Path, count: int) -> None:
    tokenizer = build_tokenizer(write_vocabulary(tmp_path), "", True)
    (tmp_path / "dev/high").mkdir(parents=True)

    def readers(case: tuple[str, bytes | str]) -> dict[str, Callable[[], object]]:
        suffix, content = case
        file, passage = tmp_path / f"train{suffix}", tmp_path / "dev/high/1.txt"
        put(file, content)
        put(passage, content)
        return {
            "labelled": lambda: read_labelled(file, tokenizer),
            "sentences": lambda: read_sentences(file, "auto", EntityColumns("text_a", "label", "DISH")),
            "names": lambda: read_sentences(file, "names", EntityColumns("text_a", "label", "DISH")),
            "squad": lambda: read_squad(file, version_2=True),
            "race": lambda: read_race(tmp_path, "dev", "high"),
            "wordpiece": lambda: build_tokenizer(str(file), "", True),
            "sentencepiece": lambda: build_tokenizer("", str(file), True),
            "documents": lambda: [tokenizer.encode(unit) for units in iter_documents(file) for unit in units],
            "tfrecord": lambda: check_tfrecord(file),
            "absent": lambda: put(file, "absent"),
        }

    def check(case: tuple[str, bytes | str]) -> None:
        for read in readers(case).values():
            only_sentences(read)

    whole = whole_texts(tmp_path)
    for name, case in whole.items():
        readers(case)[name]()
    packed = [(".zst", zstandard.compress(b"a b\n\nb\n" * 50)), (".xz", lzma.compress(b"a b\n\nb\n" * 50))]
    explore(count, text_files([*whole.values(), *packed]), check)


# --- checkpoints ---


@COUNTS
def test_checkpoints(tmp_path: Path, count: int) -> None:
    run = make_folder(tmp_path / "run", "classification")
    file = run / "albert-1.ckpt"
    whole = file.read_bytes()
    task_info = read_task_info(run)
    scores, needed = TASKS[task_info.task].scores(ARCHITECTURE, task_info), TASKS[task_info.task].needed
    # Without its last 17 bytes a file has no checksum, and its contents have to be made sense of.
    contents = st.one_of(damaged(whole), damaged(whole[:-17]), damaged(whole[:3000]), st.sampled_from(OTHER_KINDS))

    def check(content: bytes | str) -> None:
        put(file, content)
        assert content == whole or newest_checkpoint(run) is None
        load_backbone(scores, read_checkpoint(file, only_weights=True), needed)

    explore(count, contents, check)
