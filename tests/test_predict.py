"""predict.py: a file is answered line by line, what is told of it, and keys that contradict each other."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

import predict
from model_utils.backend import Backend
from model_utils.device import bfloat16_obstacle
from model_utils.errors import ConfigError
from model_utils.schema import load_config
from src.inference.deploy_config import PredictConfig
from src.inference.file_answers import RECORDS_AT_ONCE, answer_records, merge_answer, part_bounds
from src.inference.predictor import Predictor
from src.inference.record_files import NumberedRecord
from src.model_folder import ModelFolder
from tests.conftest import ROOT
from tests.helpers.messages import messages_of
from tests.helpers.trained_folders import make_folder


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
        ({"text": "x", "error": "of an earlier model"}, "prediction"),
        ({"probabilities": 0, "prediction": 1, "prediction_2": 2}, "prediction_3"),
    ],
)
def test_no_key_of_a_record_is_overwritten(record: dict[str, Any], name: str | None) -> None:
    answer = {"label": "good", "probabilities": {"good": 1.0}}
    assert merge_answer(NumberedRecord(1, record), answer) == record | ({name: answer} if name else answer)


def test_that_another_text_was_cut_is_not_said_of_an_answer() -> None:
    record = {"text": "x", "entities": [], "truncated": True}  # of an earlier model
    assert merge_answer(NumberedRecord(1, record), {"label": "good"}) == record | {"prediction": {"label": "good"}}


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


def test_a_file_is_answered_line_by_line(classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [{"id": "x", "text_a": "one", "author": "ann"}, {"text_a": ""}, {"text_a": "a" * 99}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records) + "nonsense\n")
    where = {"input": str(tmp_path / "in.jsonl"), "output": str(tmp_path / "out" / "answers.jsonl")}
    assert predict.main(PredictConfig(model=str(classifier), device_target="CPU", **where)) == 0
    answers = [json.loads(line) for line in (tmp_path / "out/answers.jsonl").read_text().splitlines()]
    assert answers[0].items() >= records[0].items() and answers[0]["label"] in ("bad", "good", "so so")
    assert answers[1].pop("error").startswith("text_a is blank") and answers[1] == {"id": None, "line": 2}
    assert answers[2]["truncated"] is True
    assert answers[3]["line"] == 4 and "is not JSON" in answers[3]["error"]
    said = capsys.readouterr().out
    assert "1 of 4 records were truncated" in said
    assert "max_seq_length 40" in said and "2 of 4 records could not be answered" in said


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


@pytest.mark.parametrize("total", [0, 1, 1024, 1025, 5000])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_parts_joined_are_all_records_in_whole_calls(total: int, count: int) -> None:
    records = [NumberedRecord(line, {}) for line in range(total)]
    bounds = [part_bounds(iter(records), index, count) for index in range(count)]
    assert [record for begin, end in bounds for record in records[begin:end]] == records
    assert all(begin % RECORDS_AT_ONCE == 0 for begin, _ in bounds)


def test_files_of_parts_joined_are_the_file_of_the_whole(
    classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was answered before in the same process: texts of all lengths, records that fail, blank lines."""
    monkeypatch.setattr("src.inference.file_answers.RECORDS_AT_ONCE", 16)
    write_records_of_all_kinds(tmp_path / "in.jsonl")

    def answers(part: str) -> bytes:
        output = tmp_path / "out.jsonl"
        words = ["--model", str(classifier), "--input", f"{tmp_path}/in.jsonl", "--output", str(output)]
        config = load_config(PredictConfig, [*words, "--part", part, "--device_target", "CPU"])
        config.check_required()
        assert predict.main(config) == 0
        return output.read_bytes()

    whole = answers("")
    assert len(whole.splitlines()) == 152
    assert b"".join(answers(f"{index}/3") for index in range(3)) == whole
    assert answers("19/20") == b"".join(whole.splitlines(keepends=True)[144:])


def write_records_of_all_kinds(file: Path) -> None:
    random = Random(0)
    texts = [" ".join(random.choices("abcdefg", k=random.randint(0, 60))) for _ in range(150)]
    lines = [json.dumps({"text_a": text, "id": row}) for row, text in enumerate(texts)]
    lines[20:20] = ["", "nonsense", "[1]"]
    file.write_text("\n".join(lines) + "\n")


KILLED = """
import os, signal
import predict
from model_utils.config import run_main
from src.inference import file_answers
from src.inference.predictor import Predictor

file_answers.RECORDS_AT_ONCE = 16
calls = 0

def until_killed(method):
    def call(self, records):
        global calls
        calls += 1
        if calls == {calls}:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(self, records)
    return call

Predictor.predict, Predictor.skip = map(until_killed, (Predictor.predict, Predictor.skip))
run_main(predict.main, predict.PredictConfig, messages="stderr")
"""


@pytest.mark.parametrize(
    ("ending", "part", "sizes", "calls"), [("jsonl", "1/2", [32, 48], [2, 5]), ("csv", "", [112], [3, 10])]
)
def test_a_killed_prediction_goes_on_behind_its_answers(
    classifier: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ending: str,
    part: str,
    sizes: list[int],
    calls: list[int],
) -> None:
    """Killed, once or twice, and started with the same path spelt otherwise, it has the bytes of an undisturbed one."""
    write_records_of_all_kinds(tmp_path / "in.jsonl")
    output = tmp_path / f"out.{ending}"
    words = ["--model", str(classifier), "--input", f"{tmp_path}/in.jsonl", "--output", str(output), "--part", part]
    words += ["--device_target", "CPU"]
    for call, size in zip((8, 9), sizes, strict=False):  # calls that skip answers count, too
        killed = subprocess.run([sys.executable, "-c", KILLED.format(calls=call), *words], cwd=ROOT, check=False)
        assert killed.returncode == -signal.SIGKILL and not output.exists()
        (unfinished,) = tmp_path.glob("*.unfinished")
        assert len(unfinished.read_bytes().splitlines()) == size
    words[words.index(f"{tmp_path}/in.jsonl")] = f"{tmp_path}/./in.jsonl"

    answered: list[int] = []
    predict_records = Predictor.predict

    def counted(self: Predictor, records: list[Any]) -> list[Any]:
        answered.append(len(records))
        return predict_records(self, records)

    monkeypatch.setattr("src.inference.file_answers.RECORDS_AT_ONCE", 16)
    monkeypatch.setattr(Predictor, "predict", counted)
    results = []
    for count in calls:  # behind the answers, then from the start
        answered.clear()
        assert predict.main(load_config(PredictConfig, words)) == 0
        assert len(answered) == count and not list(tmp_path.glob("*unfinished*"))
        results.append(output.read_bytes())
    assert results[0] == results[1]


@pytest.mark.parametrize("part", ["5/4", "4/4", "-1/4", "1", "a/b", "0/0", "1/4/", " 1/4"])
def test_parts_that_there_are_not(part: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(PredictConfig, ["--model", "m", "--input", "x", "--output", "y", "--part", part])
    assert error.value.key.strip("-") == "part"


@pytest.mark.parametrize("keys", [{"input": "-"}, {"output": "y.csv"}, {"output": "y.XLSX"}])
def test_parts_need_a_file_and_lines(keys: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="part"):
        PredictConfig(**{"model": "m", "input": "x", "output": "y", "part": "0/2"} | keys).check_required()


def test_a_file_of_which_nothing_can_be_answered(
    classify: Predictor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failed = [NumberedRecord(1, {"text": "x"}), NumberedRecord(2, {}, "line 2 is not JSON")]
    assert answer_records(classify, iter(failed), str(tmp_path / "out")) == 1
    assert caplog.messages[0] == "answered 0 of 2 records"
    assert caplog.messages[1].startswith("2 of 2 records could not be answered")
    assert answer_records(classify, iter([]), str(tmp_path / "out")) == 0
    own = NumberedRecord(1, {"text_a": "fine", "error": "an older one"})
    assert answer_records(classify, iter([own, *failed]), str(tmp_path / "out")) == 0
    assert caplog.messages[-1].startswith("2 of 3 records could not be answered")


def test_standard_input_and_output(classifier: Path) -> None:
    """In UTF-8, whatever the locale."""
    command = [sys.executable, ROOT / "predict.py", "--model", classifier, "--input", "-", "--output", "-"]
    latin = os.environ | {"PYTHONIOENCODING": "latin-1"}
    for words, lines in ([], '{"text_a": "one"}\n{"text_a": "好"}\n'), (["--input_format", "text"], "one\n好\n"):
        done = subprocess.run([*command, *words], input=lines.encode(), capture_output=True, check=True, env=latin)
        assert [json.loads(line)["text_a"] for line in done.stdout.decode().splitlines()] == ["one", "好"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--model", "m"], "--input and --output .*--serve"),
        (["--model", "m", "--serve", "8000", "--input", "x"], "input is 'x', allowed is empty while serve is 8000"),
        (
            ["--model", "m", "--serve", "8000", "--input_format", "table"],
            "input_format is 'table', .* while serve is 8000",
        ),
        (["--model", "m", "--serve", "8000", "--part", "0/2"], "part is '0/2', allowed is empty while serve is 8000"),
        (["--model", "m.air", "--input", "x", "--output", "-"], "model is 'm.air'"),
        (["--model", "m.onnx", "--serve", "8000", "--device_target", "GPU"], "device_target is .*GPU"),
        (["--model", "m.onnx", "--serve", "8000", "--fused_layers", "always"], "fused_layers is .*always"),
        (["--model", "m.onnx", "--serve", "8000", "--vocab_file_path", "v"], "vocab_file_path .* m.onnx"),
        (["--model", "m", "--input", "x", "--output", "-", "--allowed_hosts", "a"], "allowed_hosts"),
        (["--model", "m.mindir", "--input", "x", "--output", "-", "--embeddings", "1"], "embeddings .* m.mindir"),
        (
            ["--model", "m", "--input", "x", "--output", "-", "--do_lower_case", "no"],
            "do_lower_case is false, .*vocab_file_path or spm_model_file",
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
        return predict.load_predictor(config, Backend.AUTO).predict([{"text_a": "good"}, {"text_a": "GOOD"}])

    lower, upper = answers()
    assert lower == upper and [lower] != answers(do_lower_case=False)[1:]


def test_a_threshold_may_be_given_and_its_lack_is_told(
    classifier: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def threshold(model: Path, given: float | None) -> float:
        config = PredictConfig(model=model, input="in.jsonl", output="out.jsonl", null_threshold=given)
        return predict.load_predictor(config, Backend.AUTO).task_info.null_threshold

    own = make_folder(tmp_path / "own", "squad_v2")
    assert threshold(own, None) == 0.5
    bare = make_folder(tmp_path / "bare", "squad_v2", null_threshold=1.0)
    assert threshold(bare, 0.25) == 0.25 and threshold(bare, 1.0) == 1.0
    assert not messages_of(caplog, "the model has no null_threshold below 1")
    assert threshold(bare, None) == 1.0
    (told,) = messages_of(caplog, "the model has no null_threshold below 1")
    assert "answers every question: give --null_threshold" in told
    with pytest.raises(ConfigError, match=r"null_threshold is 0\.25, but the model's task is classification, not"):
        threshold(classifier, 0.25)
