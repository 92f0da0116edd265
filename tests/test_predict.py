"""Raw text in, answers out: order, numbers of bad lines, windows and cuts, files and standard streams."""

import bz2
import contextlib
import gzip
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

import predict
from model_utils.device import bfloat16_obstacle
from model_utils.errors import ConfigError, DataError
from model_utils.schema import load_config
from src.data.feature_cache import Features
from src.inference.deploy_config import PredictConfig
from src.inference.file_answers import answer_records, joined
from src.inference.predictor import Predictor
from src.inference.record_files import NumberedRecord, check_input, check_output, read_records, write_records
from src.inference.server import create_app
from src.model_folder import ModelFolder, calibrate, load_tokenizer
from src.tasks.fill_mask import encode_masked
from tests.conftest import ROOT
from tests.helpers.answers import assert_close
from tests.helpers.folder_state import folder_state
from tests.helpers.trained_folders import ARCHITECTURE, TAGS, TASK_INFOS, make_folder


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("classifier") / "run", "classification")


@pytest.fixture(scope="module")
def classify(classifier: Path) -> Predictor:
    return ModelFolder.load(classifier).predictor(batch_tokens=64)


def records_of(path: Path, content: bytes, input_format: str = "auto") -> list[tuple[int, Any]]:
    """(line, record or error)."""
    path.write_bytes(content)
    return [(each.line, each.error or each.record) for each in read_records(str(path), input_format, "text_a")]


# --- files ---


def test_json_lines(tmp_path: Path) -> None:
    content = (
        b'\xef\xbb\xbf{"text_a": "x", "id": 1}\r\n\n{"text_a"\n[1]\n{"text_a": "\xff"}\n{"text_a": "\xe5\xa5\xbd"}'
        b'\n \t\nnull\n0\nfalse\n""\n[]\n{}'
    )
    found = records_of(tmp_path / "a.jsonl", content)
    assert [line for line, _ in found] == [1, 3, 4, 5, 6, *range(8, 14)]
    assert found[0][1] == {"text_a": "x", "id": 1} and found[4][1] == {"text_a": "好"} and found[-1][1] == {}
    assert [error for _, error in found[5:-1]] == [f"line {line} is not a JSON object" for line in range(8, 13)]
    assert "line 3 is not JSON" in found[1][1]
    assert found[2][1] == "line 4 is not a JSON object" and found[3][1] == "line 5 is not UTF-8 text"


def test_what_cannot_be_written_again_keeps_its_id(tmp_path: Path) -> None:
    deep = "[" * 200 + "]" * 200
    lines = ['{"id": 7, "x": NaN}', '{"id": "a", "x": "\\ud800"}', f'{{"id": 1, "x": {deep}}}', '{"id": NaN}', "[NaN]"]
    file = tmp_path / "in.jsonl"
    file.write_text("\n".join(lines))
    found = list(read_records(str(file), "auto", "text"))
    assert [each.record for each in found] == [{"id": 7}, {"id": "a"}, {"id": 1}, {}, {}]
    assert all(each.error.startswith(f"line {each.line} is not JSON: ") for each in found)


@pytest.mark.parametrize("value", ["NaN", "1e999", r'"\ud800"', "[" * 100_000])
def test_what_cannot_be_written_again_costs_its_own_line_only(value: str, tmp_path: Path) -> None:
    content = f'{{"text_a": "x", "more": {value}}}\n{{"text_a": "y"}}\n'.encode()
    found = records_of(tmp_path / "a.jsonl", content)
    assert "line 1 is not JSON" in found[0][1] and found[1] == (2, {"text_a": "y"})


def test_tables(tmp_path: Path) -> None:
    found = records_of(tmp_path / "a.tsv", b"text_a\ttext_b\tid\none\t\t7\ntwo\n")
    assert found[0] == (2, {"text_a": "one", "id": "7"})
    assert found[1][0] == 3 and "line 3 has 1 column(s)" in found[1][1]
    assert records_of(tmp_path / "a.csv", b'text_a,id\n"one, two",7\n') == [(2, {"text_a": "one, two", "id": "7"})]
    with pytest.raises(DataError, match=r"b\.tsv has 2 columns 'text_a': a record has each key once"):
        records_of(tmp_path / "b.tsv", b"text_a\tid\ttext_a\none\t7\ttwo\n")
    assert records_of(tmp_path / "c.csv", b"text_a,,,id\none,,,7\n") == [(2, {"text_a": "one", "id": "7"})]


def test_plain_lines_keep_their_number(tmp_path: Path) -> None:
    found = records_of(tmp_path / "a.txt", b"one\n\n two \r\n")
    assert found == [(1, {"text_a": "one"}), (2, {"text_a": ""}), (3, {"text_a": " two "})]
    assert records_of(tmp_path / "b.jsonl", b"{}\n", "text") == [(1, {"text_a": "{}"})]
    assert records_of(tmp_path / "b.ndjson", b'{"text_a": "one"}\n') == [(1, {"text_a": "one"})]
    for input_format, expected in (
        ("text", [(1, {"text_a": "a\tb"}), (2, {"text_a": "c\td"})]),
        ("table", [(2, {"a": "c", "b": "d"})]),
    ):
        assert records_of(tmp_path / "c.txt", b"a\tb\nc\td\n", input_format) == expected
        check_input(str(tmp_path / "c.txt"), input_format)


@pytest.mark.parametrize(
    ("name", "input_format", "sentence"),
    [
        ("nowhere", "auto", "nowhere cannot be read: No such file"),
        ("nowhere.tsv", "auto", r"nowhere\.tsv cannot be read: No such file"),
        ("empty.tsv", "auto", r"empty\.tsv is empty"),
        (".", "text", "cannot be read: it is a folder, a device or a pipe"),
        ("pipe", "table", "pipe is no table"),
        ("n" * 300, "text", "cannot be read: File name too long"),
        ("-", "table", "a table is read from a file, not from standard input"),
        ("list.json", "auto", r"list\.json holds a list, needed is an object in each line"),
        ("lines.jsonl.gz", "json_lines", r"lines\.jsonl\.gz is compressed; unpack it first"),
        ("lines.jsonl.bz2", "auto", r"lines\.jsonl\.bz2 is compressed; unpack it first \(bunzip2\)"),
        ("windows.txt", "auto", r"windows\.txt is not UTF-8 text but, maybe, UTF-16"),
        ("half.txt", "text", r"half\.txt is not UTF-8 text but, maybe, UTF-16"),
        ("records.1", "auto", r"records\.1 may hold JSON objects, .* give --input_format json_lines or --input_format"),
        ("lines.txt", "auto", r"lines\.txt may be a table, .* give --input_format table or --input_format text"),
        ("late.tsv", "auto", r"late\.tsv: byte 0xff at offset .* is not UTF-8 text"),
    ],
)
def test_an_input_that_cannot_be_is_refused_before_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, input_format: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.tsv").touch()
    Path("list.json").write_text('\ufeff [{"text_a": "a"},\n {"text_a": "b"}]\n', encoding="utf-8")
    Path("lines.jsonl.bz2").write_bytes(bz2.compress(b'{"text_a": "a"}\n' * 100))
    Path("windows.txt").write_bytes("a\nb\n".encode("utf-16"))
    Path("half.txt").write_bytes("a\nb\n".encode("utf-16-le"))
    Path("records.1").write_text('\n {"text_a": "a"}\n')
    Path("lines.txt").write_text("text_a\ttext_b\na\tb\n")
    Path("lines.jsonl.gz").write_bytes(gzip.compress(b'{"text_a": "a"}\n'))
    Path("late.tsv").write_bytes(b"text_a\n" + 40_000 * b"a text\n" + b"\xff\n")
    os.mkfifo("pipe")
    before = folder_state(tmp_path)
    with pytest.raises(DataError, match=sentence):
        check_input(name, input_format)
    with pytest.raises(DataError, match=sentence):
        list(read_records(name, input_format, "text_a"))
    with pytest.raises(DataError, match=sentence):
        predict.main(PredictConfig(model="nowhere", input=name, output="new/out", input_format=input_format))
    assert folder_state(tmp_path) == before


@contextlib.contextmanager
def ended(fifo: Path) -> Iterator[None]:
    """Whoever still waits for a writer after the block, because the test failed, is told that there is none."""
    try:
        yield
    finally:
        os.close(os.open(fifo, os.O_RDWR))


def test_a_pipe_is_waited_for_with_a_word_and_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fifo, said = tmp_path / "fifo", queue.Queue()
    os.mkfifo(fifo)
    monkeypatch.setattr("src.inference.record_files.PIPE_PATIENCE", 0)
    monkeypatch.setattr("src.inference.record_files.logger.info", said.put)
    check_input(str(fifo), "text")
    with ThreadPoolExecutor(max_workers=1) as thread, ended(fifo):
        read = thread.submit(lambda: list(read_records(str(fifo), "text", "text_a")))
        assert said.get(timeout=60) == f"{fifo} is a pipe to which nothing was written yet: waiting for it"
        with fifo.open("w") as stream:
            for text in ("one\n", "two\n"):
                stream.write(text)
                stream.flush()
        assert [each.record for each in read.result()] == [{"text_a": "one"}, {"text_a": "two"}]


def test_half_an_output_is_never_seen(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    file.write_text("old")
    with pytest.raises(ValueError, match="not JSON compliant"), write_records(str(file)) as write:
        write({"score": float("nan")})
    assert file.read_text() == "old" and [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]
    with write_records(str(file)) as write:
        write({"label": "好"})
    assert file.read_text(encoding="utf-8") == '{"label": "好"}\n'


def test_an_output_that_is_no_file_stays_what_it_is(tmp_path: Path) -> None:
    fifo, link, target = tmp_path / "fifo", tmp_path / "link", tmp_path / "target"
    os.mkfifo(fifo)
    link.symlink_to(target)
    with ThreadPoolExecutor(max_workers=1) as thread, ended(fifo):
        read = thread.submit(fifo.read_text)
        for place in (fifo, link):
            check_output(str(place), "-")
            with write_records(str(place)) as write:
                write({"label": "good"})
        assert read.result() == target.read_text() == '{"label": "good"}\n'
    assert fifo.is_fifo() and link.is_symlink()


def test_an_output_that_cannot_be_is_refused_before_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.jsonl").touch()
    (tmp_path / "link").symlink_to(tmp_path / "in.jsonl")
    source = str(tmp_path / "in.jsonl")
    for same in ("in.jsonl", "link"):
        with pytest.raises(ConfigError, match=f"the output .*{same} is the input"):
            check_output(str(tmp_path / same), source)
    with pytest.raises(ConfigError, match="output is ~/out, but ~ means your home to the shell alone"):
        check_output("~/out", source)
    for name, sentence in (
        ("", "is a folder"),
        ("in.jsonl/x", "in.jsonl: Not a directory"),
        ("x" * 300, "name too long"),
    ):
        with pytest.raises(DataError, match=sentence):
            check_output(str(tmp_path / name), source)
    (tmp_path / "elsewhere").symlink_to("new/folder/out.jsonl")
    for name in ("new/out.jsonl", "elsewhere"):
        check_output(str(tmp_path / name), str(tmp_path / "nowhere"))
    assert not (tmp_path / "new").exists()
    with write_records(str(tmp_path / "elsewhere")) as write:
        write({"label": "good"})
    assert (tmp_path / "new/folder/out.jsonl").read_text() == '{"label": "good"}\n'
    asked: list[Path] = []
    monkeypatch.setattr("src.inference.record_files.check_writable", asked.append)
    check_output(str(tmp_path / "elsewhere"), source)
    assert asked == [tmp_path / "new/folder"]  # where writing happens


def test_an_output_that_is_standard_input_is_refused(tmp_path: Path) -> None:
    """It may be written to while it is read: in.jsonl would be lost."""
    script = "import sys; from src.inference.record_files import check_output; check_output(sys.argv[1], '-')"
    for name in ("in.jsonl", "other.jsonl"):
        (tmp_path / name).touch()
        with (tmp_path / "in.jsonl").open() as records:
            command = [sys.executable, "-c", script, str(tmp_path / name)]
            done = subprocess.run(command, stdin=records, capture_output=True, text=True, cwd=ROOT, check=False)
        assert ("is the input" in done.stderr) == bool(done.returncode) == (name == "in.jsonl")


def test_standard_streams_that_are_not_there_are_refused_before_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(DataError, match="standard input is closed"):
        check_input("-", "auto")
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(DataError, match="standard output is closed"):
        check_output("-", "-")


def test_standard_output_that_is_closed_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with (
            pytest.raises(DataError, match="standard output cannot be written: Broken pipe"),
            write_records("-") as write,
        ):
            write({"label": "good"})
        monkeypatch.undo()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_leaves_nothing_half_written(
    number: signal.Signals, tmp_path: Path, classify: Predictor
) -> None:
    def predict_for_long(records: list[Any]) -> None:
        os.kill(os.getpid(), number)
        time.sleep(30)

    slow = SimpleNamespace(task_info=classify.task_info, predict=predict_for_long)
    before = signal.signal(number, lambda *_: pytest.fail("the signal was not awaited"))
    kept = signal.getsignal(number)
    with pytest.raises(SystemExit) as ended:
        answer_records(slow, iter([NumberedRecord(1, {"text_a": "x"})]), str(tmp_path / "answers"))
    assert ended.value.code == 128 + number and signal.signal(number, before) == kept
    assert list(tmp_path.iterdir()) == []


def test_under_nohup_the_end_of_the_terminal_is_not_told(tmp_path: Path, classify: Predictor) -> None:
    def predict(records: list[Any]) -> list[dict[str, Any]]:
        os.kill(os.getpid(), signal.SIGHUP)
        return [{"label": "good"} for _ in records]

    goes_on = SimpleNamespace(task_info=classify.task_info, predict=predict)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        answer_records(goes_on, iter([NumberedRecord(1, {"text_a": "x"})]), str(tmp_path / "answers"))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert json.loads((tmp_path / "answers").read_text())["label"] == "good"


@pytest.mark.parametrize(
    ("record", "name"),
    [
        ({"text": "x"}, None),
        ({"text": "x", "label": 1}, "prediction"),
        ({"probabilities": 0, "prediction": 1, "prediction_2": 2}, "prediction_3"),
    ],
)
def test_no_key_of_a_record_is_overwritten(record: dict[str, Any], name: str | None) -> None:
    answer = {"label": "good", "probabilities": {"good": 1.0}}
    assert joined(NumberedRecord(1, record), answer) == record | ({name: answer} if name else answer)


def test_that_another_text_was_cut_is_not_said_of_an_answer() -> None:
    record = {"text": "x", "entities": [], "truncated": True}  # of an earlier model
    assert joined(NumberedRecord(1, record), {"label": "good"}) == record | {"prediction": {"label": "good"}}


def test_how_many_records_were_answered_is_told(
    tmp_path: Path, classify: Predictor, caplog: pytest.LogCaptureFixture
) -> None:
    scripted = SimpleNamespace(
        task_info=classify.task_info, predict=lambda records: [{"label": "good"} for _ in records]
    )
    assert answer_records(scripted, iter([]), str(tmp_path / "none")) == 0
    records = [NumberedRecord(1, {"text_a": "x"}), NumberedRecord(2, {}, "line 2 is not JSON")]
    assert answer_records(scripted, iter(records), str(tmp_path / "some")) == 0
    assert caplog.messages[:2] == ["answered 0 of 0 records", "answered 1 of 2 records"]


# --- records ---


def test_order_and_errors_in_their_places(classify: Predictor) -> None:
    texts = [f"word number {'abcdefghij'[index % 10] * (1 + index % 7)}" for index in range(41)]
    records: list[dict[str, Any]] = [{"text_a": text} for text in texts]
    records[3], records[20], records[40] = {"text": "x"}, {"text_a": 5}, {"text_a": " \n"}
    answers = classify.predict(records)
    assert answers[3] == {"error": "text_a is missing; the record has text"}
    assert answers[20] == {"error": "text_a is int, needed is a text"}
    assert answers[40] == {"error": "text_a is blank, needed is a text"}
    for index in (0, 19, 39):
        alone = classify.predict([records[index]])[0]
        assert alone["label"] == answers[index]["label"]
        assert alone["probabilities"] == pytest.approx(answers[index]["probabilities"], abs=1e-5)
    assert classify.predict([]) == []


def test_what_is_null_is_missing(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run", "classification", text_columns={"text_a": "review"})
    predictor = ModelFolder.load(folder).predictor()
    assert predictor.predict([{"review": None, "text_a": "good"}]) == predictor.predict([{"review": "good"}])


def test_outputs_that_are_no_numbers_cost_their_own_records_only(
    classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = ModelFolder.load(classifier).predictor()
    records = [{"text_a": "a"}, {"text_a": "bcd"}, {"text_a": "c"}]
    first, _, third = predictor.predict(records)
    run = predictor._run

    def damaged(features: Features) -> dict[str, Any]:
        outputs = run(features)
        outputs["logits"][features.values["input_ids"].counts == 5] = np.inf
        return outputs

    monkeypatch.setattr(predictor, "_run", damaged)
    error = {"error": "the network's outputs are not finite: its weights may be damaged"}
    assert_close(predictor.predict(records), [first, error, third])


def test_another_thread_may_ask(classify: Predictor) -> None:
    """As the server does."""
    records = [{"text_a": "some words"}, {"text_a": "a"}]
    with ThreadPoolExecutor(max_workers=1) as thread:
        assert thread.submit(classify.predict, records).result() == classify.predict(records)


def test_text_of_which_nothing_is_left_harms_no_other(classify: Predictor) -> None:
    """Control characters and such are dropped by the tokenizer."""
    answers = classify.predict([{"text_a": "fine"}, {"text_a": "\x00\u200b\ufffd"}])
    assert answers[0]["probabilities"] == pytest.approx(classify.predict([{"text_a": "fine"}])[0]["probabilities"])
    assert "label" in answers[1]


def test_what_is_cut_says_so(classify: Predictor) -> None:
    short, long = classify.predict([{"text_a": "a" * 38}, {"text_a": "a" * 39}])
    assert "truncated" not in short and long["truncated"] is True
    assert long["probabilities"] == pytest.approx(short["probabilities"], abs=1e-5)


def test_texts_may_have_the_names_of_their_columns_in_training(
    classifier: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(classifier, tmp_path / "run")
    columns = {"text_a": "review", "text_b": "title"}
    calibrate(folder, {"text_columns": columns})
    predictor = ModelFolder.load(folder).predictor()
    pair = {"text_a": "fine", "text_b": "words"}
    same = [{"review": "fine", "title": "words"}, {"review": "fine", "text_b": "words"}, pair | {"review": "fine"}]
    assert predictor.predict(same) == predictor.predict([pair] * 3)
    assert "a record has no" not in caplog.text
    assert predictor.predict([{"review": "fine"}]) == predictor.predict([{"text_a": "fine"}])
    assert caplog.text.count("a record has no title, which the texts that the model was trained on had") == 1
    assert predictor.predict([{"body": "fine"}]) == [{"error": "review or text_a is missing; the record has body"}]

    named = ModelFolder.load(folder).predictor(text_columns=("body", "head"))
    asked = [{"body": "fine", "head": "words"}, {"review": "fine", "head": "a"}, {"body": "fine", "title": "words"}]
    answers = named.predict(asked)
    alone = ModelFolder.load(folder).predictor()  # which has no larger graph, of other kernels and other last bits
    assert answers[:1] == alone.predict([pair])
    assert answers[1:] == [
        {"error": "body is missing; the record has review, head"},
        {"error": "head is missing; the record has body, title"},
    ]
    for columns, sentence in (
        (("", "head"), "text_b_column is head, but records of the model's task, embeddings, have text_a"),
        (("body", "head"), "text_b_column is head"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            ModelFolder.load(folder).predictor(embeddings=True, text_columns=columns)


def test_a_model_of_one_segment_takes_no_second_text(tmp_path: Path) -> None:
    """transformers ends with an IndexError; the segment has no embedding."""
    folder = make_folder(tmp_path / "run", "classification", ARCHITECTURE.replace(type_vocab_size=1))
    alone, pair = {"text_a": "fine"}, {"text_a": "fine", "text_b": "words"}
    predictor = ModelFolder.load(folder).predictor()
    first, refused, last = predictor.predict([alone, pair, alone])
    assert refused == {"error": "the model has type_vocab_size 1: it takes no second text"}
    assert first["label"] == last["label"] and first["probabilities"] == pytest.approx(last["probabilities"], abs=1e-6)


def test_a_second_text_is_no_part_of_records_of_a_model_of_single_texts(
    classifier: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(classifier, tmp_path / "run")
    alone, pair = {"text_a": "fine"}, {"text_a": "fine", "text_b": "words"}
    calibrate(folder, {"text_columns": {"text_a": "text_a"}})
    predictor = ModelFolder.load(folder).predictor()
    assert predictor.predict([pair]) == predictor.predict([alone])
    predictor.predict([pair])
    assert caplog.text.count("a record has text_b, which the texts that the model was trained on had not") == 1
    asked = ModelFolder.load(folder).predictor(text_columns=("", "text_b")).predict([pair])
    assert asked == ModelFolder.load(classifier).predictor().predict([pair]) != predictor.predict([pair])

    calibrate(folder, {"text_columns": {"text_a": "text_b"}})
    named = ModelFolder.load(folder).predictor()
    assert named.predict([{"text_a": "fine", "text_b": "words"}]) == named.predict([{"text_a": "words"}])


def test_a_blank_record_is_an_error_for_itself_over_http(classify: Predictor) -> None:
    reply = TestClient(create_app(classify)).post("/predict", json={"records": [{"text_a": " "}, {"text_a": "fine"}]})
    blank, fine = reply.json()["answers"]
    assert blank == {"error": "text_a is blank, needed is a text"} and "label" in fine


def test_probabilities_are_of_all_labels(classify: Predictor) -> None:
    (answer,) = classify.predict([{"text_a": "fine", "text_b": "words"}])
    assert list(answer["probabilities"]) == ["bad", "good", "so so"]
    assert sum(answer["probabilities"].values()) == pytest.approx(1.0, abs=1e-6)
    assert answer["label"] == max(answer["probabilities"], key=answer["probabilities"].get)


def test_choices_need_four_options(tmp_path: Path) -> None:
    predictor = ModelFolder.load(make_folder(tmp_path / "run", "multiple_choice")).predictor()
    good = {"article": "a b c", "question": "why", "options": ["a", "b", "c", "d"]}
    answers = predictor.predict([good | {"options": ["a"]}, good, good | {"options": ["a", "b", "c", ""]}])
    assert answers[0] == {"error": "options is no list of 4 texts"}
    assert answers[1]["answer"] in "ABCD" and list(answers[1]["probabilities"]) == list("ABCD")
    assert answers[2] == {"error": "an option is blank, needed is a text"}


@pytest.mark.parametrize("task", ["squad_v1", "squad_v2"])
def test_spans_are_parts_of_long_contexts(task: str, tmp_path: Path) -> None:
    predictor = ModelFolder.load(make_folder(tmp_path / "run", task)).predictor()
    context = "  It is, by any word; a long “text” é of many windows. " * 4
    (answer,) = predictor.predict([{"context": context, "question": "what is it?"}])
    assert 1 <= len(answer["n_best"]) <= 4
    assert sum(span["score"] for span in answer["n_best"]) == pytest.approx(1.0)
    assert all(context[span["start"] : span["end"]] == span["answer"] for span in answer["n_best"])
    scores = [span["score"] for span in answer["n_best"]]
    assert scores == sorted(scores, reverse=True)
    fits, cut = predictor.predict([{"context": "it is", "question": "a" * length} for length in (12, 13)])
    assert "truncated" not in answer and "truncated" not in fits and cut["truncated"] is True
    assert cut["n_best"] == fits["n_best"]
    if task == "squad_v1":
        assert answer["no_answer_probability"] is None and answer["answer"] == answer["n_best"][0]["answer"]
    else:
        assert (answer["answer"] == "") == (answer["no_answer_probability"] > 0.5)


def test_a_threshold_may_be_given_and_its_lack_is_told(
    classifier: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def threshold(model: Path, given: float | None) -> float:
        config = PredictConfig(model=model, input="in.jsonl", output="out.jsonl", null_threshold=given)
        return predict.load_predictor(config).task_info.null_threshold

    own = make_folder(tmp_path / "own", "squad_v2")
    assert threshold(own, None) == 0.5
    bare = make_folder(tmp_path / "bare", "squad_v2", null_threshold=1.0)
    assert threshold(bare, 0.25) == 0.25 and threshold(bare, 1.0) == 1.0
    assert not messages_of(caplog, "the model has no null_threshold")
    assert threshold(bare, None) == 1.0
    (told,) = messages_of(caplog, "the model has no null_threshold")
    assert "answers every question: give --null_threshold" in told
    with pytest.raises(ConfigError, match=r"null_threshold is 0\.25, but the model's task is classification, not"):
        threshold(classifier, 0.25)


def test_entities_have_their_surface_text(tmp_path: Path) -> None:
    predictor = ModelFolder.load(make_folder(tmp_path / "run", "token_classification")).predictor()
    text = "Anna's  friend (of Lyon) came, with 3.5 others; " * 5  # several windows
    entities = predictor.predict([{"text": text}])[0]["entities"]
    assert entities and all(text[each["start"] : each["end"]] == each["text"] for each in entities)
    assert {each["label"] for each in entities} <= {tag[2:] for tag in TAGS if tag != "O"}
    tokens = ["Anna", "came", "to", "Lyon"]
    records = [{"tokens": tokens}, {"text": "Anna came to Lyon"}, {"tokens": []}]
    answers = predictor.predict(records + [records[1] | {"tokens": other} for other in (7, None, ["x"])])
    assert answers[0] == answers[1]
    assert answers[2] == {"error": "tokens is an empty list, needed is one of texts"}
    assert answers[3:] == [answers[1]] * 3  # a key that is passed through
    assert predictor.predict([{"tokens": tokens, "text": text} for text in ("", None, 5)]) == answers[:1] * 3


def test_text_is_split_into_characters_where_training_text_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "2018年 iPhone在北京"
    characters = [character for character in text if character != " "]
    answers = []
    for words_are_characters in (True, False):
        of_task = TASK_INFOS["token_classification"] | {"words_are_characters": words_are_characters}
        monkeypatch.setitem(TASK_INFOS, "token_classification", of_task)
        folder = make_folder(tmp_path / str(words_are_characters), "token_classification")
        answers.append(ModelFolder.load(folder).predictor().predict([{"text": text}, {"tokens": characters}]))
    (of_text, of_tokens), (of_words, _) = ([one["entities"] for one in pair] for pair in answers)
    found = [(each["label"], each["score"]) for each in of_text]
    assert found == [(each["label"], pytest.approx(each["score"], abs=1e-5)) for each in of_tokens]
    assert found != [(each["label"], each["score"]) for each in of_words]


def test_masks_are_filled_in(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run", "fill_mask")
    predictor = ModelFolder.load(folder).predictor(top_k=3)
    texts = ["[MASK] ab", "a [MASK] c [MASK]", "none", "[MASK]" + "a" * 38]
    answers = predictor.predict([{"text": text} for text in texts])
    assert [len(answer.get("predictions", ())) for answer in answers] == [1, 2, 0, 0]
    vocabulary = load_tokenizer(folder).vocab
    for tokens in (tokens for answer in answers for tokens in answer.get("predictions", ())):
        probabilities = [token["probability"] for token in tokens]
        assert len(tokens) == 3 and probabilities == sorted(probabilities, reverse=True) and sum(probabilities) <= 1
        assert all(token["token"] in vocabulary for token in tokens)
    assert answers[2]["error"] == "the text 'none' has no [MASK] to fill in"
    assert answers[3]["error"].endswith("has 41 tokens, the network takes at most 40")
    classifier = ModelFolder.load(make_folder(tmp_path / "classifier", "classification"))
    with pytest.raises(ConfigError, match="top_k is 5, but the model's task is classification, not fill_mask"):
        classifier.predictor(top_k=5)


def test_many_masks_are_computed_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mask has scores for the whole vocabulary: memory, not the number of records, bounds what goes together."""
    predictor = ModelFolder.load(make_folder(tmp_path / "run", "fill_mask")).predictor()
    records = [{"text": "a [MASK] " * count} for count in (1, 1, 9, 1, 2, 2)]
    expected = predictor.predict(records)
    calls: list[tuple[int, ...]] = []
    compute = type(predictor.network).__call__
    monkeypatch.setattr(
        type(predictor.network),
        "__call__",
        lambda self, *columns: (calls.append(columns[-1].shape), compute(self, *columns))[1],
    )
    monkeypatch.setattr("src.inference.predictor._OUTPUTS_AT_ONCE", 4 * predictor.architecture.vocab_size)
    for answer, before in zip(predictor.predict(records), expected, strict=True):
        assert [len(one) for one in answer["predictions"]] == [len(one) for one in before["predictions"]]
        for one, other in zip(answer["predictions"], before["predictions"], strict=True):
            assert one[0]["probability"] == pytest.approx(other[0]["probability"], abs=1e-6)
    assert calls == [(2, 1), (1, 16), (2, 2), (1, 2)]


def test_a_mask_stands_where_the_text_has_it(classifier: Path) -> None:
    tokenizer = load_tokenizer(classifier)
    ids = encode_masked("A [MASK] bc [MASK].", tokenizer, 40)
    assert tokenizer.convert_ids_to_tokens(ids) == "[CLS] a [MASK] b ##c [MASK] . [SEP]".split()


def test_after_a_mask_no_piece_becomes_the_start_of_a_word(shared: Path) -> None:
    from src.tokenization import FullTokenizer

    tokenizer = FullTokenizer(spm_model_file=shared / "data/vocab/30k-clean.model")
    ids = encode_masked("The capital of [MASK], paris, is [MASK].", tokenizer, 40)
    tokens = "[CLS] ▁the ▁capital ▁of [MASK] , ▁paris , ▁is [MASK] . [SEP]".split()
    assert tokenizer.convert_ids_to_tokens(ids) == tokens


# --- the command ---


def test_a_file_is_answered_line_by_line(classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [{"id": "x", "text_a": "one", "author": "ann"}, {"text_a": ""}, {"text_a": "a" * 99}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records) + "nonsense\n")
    where = {"input": str(tmp_path / "in.jsonl"), "output": str(tmp_path / "out" / "answers.jsonl")}
    assert predict.main(PredictConfig(model=str(classifier), device_target="CPU", **where)) == 0
    answers = [json.loads(line) for line in (tmp_path / "out/answers.jsonl").read_text().splitlines()]
    assert answers[0].items() >= records[0].items() and answers[0]["label"] in ("bad", "good", "so so")
    assert answers[1] == {"id": None, "line": 2, "error": "text_a is blank, needed is a text"}
    assert answers[2]["truncated"] is True
    assert answers[3]["line"] == 4 and "is not JSON" in answers[3]["error"]
    said = capsys.readouterr().out
    assert "1 of 4 records have texts longer than the model takes, which were cut: max_seq_length 40" in said
    assert "2 of 4 records could not be answered" in said


@pytest.mark.skipif(bool(bfloat16_obstacle("CPU")), reason=bfloat16_obstacle("CPU"))
def test_the_command_rounds_where_that_is_asked_for(classifier: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("fine\n")
    answers = {}
    for compute_type in ("float32", "bfloat16"):
        where = {"input": str(tmp_path / "in.txt"), "output": str(tmp_path / f"{compute_type}.jsonl")}
        config = PredictConfig(model=str(classifier), device_target="CPU", compute_type=compute_type, **where)
        assert predict.main(config) == 0
        (answers[compute_type],) = map(json.loads, Path(where["output"]).read_text().splitlines())
        predictor = ModelFolder.load(classifier, compute_type=compute_type).predictor()
        assert answers[compute_type]["probabilities"] == predictor.predict([{"text_a": "fine"}])[0]["probabilities"]
    assert answers["float32"] != answers["bfloat16"]


def test_a_file_of_which_nothing_can_be_answered(
    classify: Predictor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failed = [NumberedRecord(1, {"text": "x"}), NumberedRecord(2, {}, "line 2 is not JSON")]
    assert answer_records(classify, iter(failed), str(tmp_path / "out")) == 1
    assert caplog.messages == [
        "answered 0 of 2 records",
        "2 of 2 records could not be answered: each has an error in its place",
    ]
    assert answer_records(classify, iter([]), str(tmp_path / "out")) == 0
    own = NumberedRecord(1, {"text_a": "fine", "error": "an older one"})
    assert answer_records(classify, iter([own, *failed]), str(tmp_path / "out")) == 0
    assert caplog.messages[-1:] == ["2 of 3 records could not be answered: each has an error in its place"]


def test_a_dry_run_keeps_nothing(classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.dumps({"text_a": "a" * (1 + number % 30)}) for number in range(200)]
    (tmp_path / "in.jsonl").write_text("\n".join([*lines, "nonsense"]))
    where = {"input": str(tmp_path / "in.jsonl"), "output": str(tmp_path / "new" / "out.jsonl")}
    assert predict.main(PredictConfig(model=str(classifier), device_target="CPU", dry_run=True, **where)) == 0
    said = capsys.readouterr().out
    assert "dry run: 201 records, 1 of them unreadable. 64 were answered in" in said and "Nothing was kept." in said
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_standard_input_and_output(classifier: Path) -> None:
    """In UTF-8, whatever the locale."""
    command = [sys.executable, ROOT / "predict.py", "--model", classifier, "--input", "-", "--output", "-"]
    command += ["--input_format", "text"]
    latin = os.environ | {"PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, input="one\n好\n".encode(), capture_output=True, check=True, env=latin)
    assert [json.loads(line)["text_a"] for line in done.stdout.decode().splitlines()] == ["one", "好"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model", "m"], "--input and --output are needed"),
        (["--model", "m", "--serve", "8000", "--input", "x"], "input means nothing beside it"),
        (["--model", "m", "--serve", "8000", "--input_format", "table"], "input_format means nothing beside it"),
        (["--model", "m", "--serve", "8000", "--dry_run", "yes"], "dry_run means nothing beside it"),
        (["--model", "m.onnx", "--input", "x", "--output", "-"], "ONNX and AIR files are for runtimes of their own"),
        (["--model", "m", "--input", "x", "--output", "-", "--allowed_hosts", "a"], "mean nothing without serve"),
        (
            ["--model", "m", "--input", "x", "--output", "-", "--encrypt_key_file", "k"],
            "only a MINDIR can be encrypted",
        ),
        (
            ["--model", "m.mindir", "--input", "x", "--output", "-", "--embeddings", "1"],
            "embeddings is given, but what a MINDIR",
        ),
        (
            ["--model", "m", "--input", "x", "--output", "-", "--do_lower_case", "no"],
            "do_lower_case is false, which means nothing without vocab_file_path or spm_model_file",
        ),
    ],
)
def test_flags_that_contradict_each_other(arguments: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_config(PredictConfig, arguments).check_required()


def test_text_is_read_as_the_vocabulary_was_made(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run", "classification")
    (folder / "tokenizer_config.json").unlink()
    vocabulary = (folder / "vocab.txt").rename(tmp_path / "vocab.txt")

    def answers(**keys: Any) -> list[Any]:
        config = PredictConfig(model=folder, input="-", output="-", vocab_file_path=vocabulary, **keys)
        return predict.load_predictor(config).predict([{"text_a": "good"}, {"text_a": "GOOD"}])

    lower, upper = answers()
    assert lower == upper and [lower] != answers(do_lower_case=False)[1:]


def messages_of(caplog: pytest.LogCaptureFixture, start: str) -> list[str]:
    """Messages that begin so."""
    return [message for record in caplog.records if (message := record.getMessage()).startswith(start)]


def test_numbers_of_masks_share_shapes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    predictor = ModelFolder.load(make_folder(tmp_path / "run", "fill_mask")).predictor()
    with caplog.at_level("INFO", logger="src.inference.network_batches"):
        for masks in range(1, 9):
            (answer,) = predictor.predict([{"text": "a " * (9 - masks) + "[MASK] " * masks}])
            assert len(answer["predictions"]) == masks
    said = [message.rpartition(", ")[2] for message in messages_of(caplog, "compiling")]
    assert said == [f"{places} places of a text" for places in (1, 2, 4, 8)]


def test_few_shapes_are_compiled_and_said(classifier: Path, caplog: pytest.LogCaptureFixture) -> None:
    predictor = ModelFolder.load(classifier).predictor(batch_tokens=256)
    records = [{"text_a": " ".join(["good"] * (number % 37 + 1))} for number in range(300)]
    with caplog.at_level("INFO", logger="src.inference.network_batches"):
        answers = predictor.predict(records)
        said = messages_of(caplog, "compiling")
        assert predictor.predict(records) == answers
    assert messages_of(caplog, "compiling") == said == ["compiling the network for batches of 256 tokens"]
    alike = [answer for record, answer in zip(records, answers, strict=True) if record == records[0]]
    assert len(alike) > 5
    for answer in alike[1:]:
        assert answer["probabilities"] == pytest.approx(alike[0]["probabilities"], abs=1e-5)
