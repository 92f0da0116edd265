"""Exported files and the server answer as the checkpoint does, for every head; damaged or foreign files are refused."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from fastapi.testclient import TestClient
from mindspore import Tensor
from mindspore.train import serialization

import export
from model_utils.backend import Backend
from model_utils.device import bfloat16_obstacle, ensure_device
from model_utils.errors import CheckpointError, ConfigError, DataError, DeviceError, UserError
from model_utils.native_code import find_compiler
from model_utils.schema import load_config
from src.checkpoints.checkpoint_files import save_checkpoint
from src.inference.deploy_config import AIR, MINDIR, ONNX, ExportConfig
from src.inference.exported_model import fused_network, load_exported, load_mindir, read_description
from src.inference.exporting import check, export_model, make_reproducible
from src.inference.predictor import Predictor
from src.inference.server import create_app
from src.model_folder import ModelFolder, read_task_info
from src.tasks import TASKS
from src.tasks.multitask_config import MultitaskConfig
from tests.helpers.answers import assert_close
from tests.helpers.exported_records import RECORDS, TEXTS
from tests.helpers.folder_state import folder_state
from tests.helpers.small_disk import no_file_beyond
from tests.helpers.trained_folders import ARCHITECTURE, ONE_LAYER, TASK_INFOS, make_folder

ROOT = Path(__file__).resolve().parents[1]


def test_the_yaml_of_a_task_with_capitals_serves(tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text("do_lower_case: false\nload_pretrain_checkpoint_path: run\n")
    words = ["--config_path", str(tmp_path / "task.yaml"), "--export_ckpt_file", "run", "--export_file_name", "out/m"]
    assert load_config(ExportConfig, words).do_lower_case is False


def portable_model(folder: Path, embeddings: bool = False) -> Predictor:
    """Return a predictor of a folder's weights, from which exports are made."""
    return ModelFolder.load(folder).predictor(embeddings, portable=True)


def exported(model: Predictor, name: Path, **settings: Any) -> Path:
    """NAME.mindir."""
    export_model(model, name, MINDIR, **settings)
    return name.with_name(f"{name.name}.mindir")


def served(model: Predictor, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the answers of the HTTP API."""
    reply = TestClient(create_app(model)).post("/predict", json={"records": records})
    assert reply.status_code == 200, reply.text
    return reply.json()["answers"]


@pytest.fixture(scope="module")
def portable(classifier: Path) -> Predictor:
    """Compiled once; tests that change the network make one of their own."""
    return portable_model(classifier)


@pytest.fixture(scope="module")
def mindir(portable: Predictor, classifier: Path) -> Path:
    return exported(portable, classifier.parent / "out" / "model")


@pytest.fixture
def copy(mindir: Path, tmp_path: Path) -> Path:
    """The exported files, to be damaged."""
    for file in mindir.parent.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path / mindir.name


@pytest.mark.parametrize("task", RECORDS)
def test_the_mindir_answers_as_the_checkpoint(task: str, tmp_path: Path) -> None:
    """Answers are in the promised form, the same from both, and do not depend on the other rows of a batch."""
    is_embeddings = task == "embeddings"
    folder = make_folder(tmp_path / "run", "classification" if is_embeddings else task, ONE_LAYER)
    before = folder_state(folder)
    model = portable_model(folder, is_embeddings)
    file = exported(model, tmp_path / "out" / task)
    records = [RECORDS[task](text) for text in TEXTS]
    # Else its weights are read, and computed with in the layers that a checkpoint has here.
    from_mindir = load_exported(file, backend=Backend.COMPOSED)
    ours = ModelFolder.load(folder).predictor(is_embeddings)
    answers = from_mindir.predict(records)
    assert_close(answers, ours.predict(records))
    assert load_exported(file).predict(records) == ours.predict(records) or find_compiler() is None
    assert answers == model.predict(records)
    assert served(from_mindir, records) == answers
    for answer in answers:
        assert "error" not in answer
        TASKS[task].answer.model_validate(answer, extra="forbid")
    assert_close(from_mindir.predict(records[:1]), answers[:1])
    names = {path.name for path in file.parent.iterdir()}
    assert names == {f"{task}.mindir", f"{task}.json", f"{task}.vocab.txt"}
    assert folder_state(folder) == before


def test_a_mindir_has_the_transitions_of_tags(tmp_path: Path) -> None:
    model = ModelFolder.load(make_folder(tmp_path / "run", "token_classification", ONE_LAYER, crf=True))
    records = [RECORDS["token_classification"](text) for text in TEXTS]
    expected = model.predictor().predict(records)
    file = exported(model.predictor(portable=True), tmp_path / "out" / "tags")
    from_mindir = load_exported(file, backend=Backend.COMPOSED)
    assert_close(from_mindir.predict(records), expected)
    assert_close(served(from_mindir, records), expected)
    assert load_exported(file).predict(records) == expected or find_compiler() is None
    plain = ModelFolder.load(make_folder(tmp_path / "plain", "token_classification", ONE_LAYER))
    assert plain.predictor().predict(records) != expected
    keys = {*plain.task_info.values_with_defaults(), *plain.task_info.setting_keys()}
    assert not keys & {"crf", "mark_capitals"}  # older exports have no such keys


def test_a_program_that_sets_up_nothing_computes_in_graphs(mindir: Path) -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ensure_device.cache_clear()
    try:
        load_exported(mindir)
        assert ms.get_context("mode") == ms.GRAPH_MODE
    finally:
        ms.set_context(mode=ms.GRAPH_MODE)


def test_weights_that_a_description_does_not_fit(mindir: Path) -> None:
    graph, (_, task_info) = load_mindir(mindir), read_description(mindir)
    for change in ({"intermediate_size": 12}, {"num_hidden_groups": 2}):
        with pytest.raises(DataError, match="weight"):
            fused_network(graph, ARCHITECTURE.replace(num_hidden_layers=2, **change), task_info)


@pytest.mark.skipif(bool(bfloat16_obstacle("CPU")), reason=bfloat16_obstacle("CPU"))
def test_answers_in_bfloat16_are_near(classifier: Path, mindir: Path) -> None:
    """From a checkpoint and from a MINDIR the same, unless its graph computes."""
    records = [{"text_a": text} for text in TEXTS]
    exact = ModelFolder.load(classifier).predictor().predict(records)
    rounded = ModelFolder.load(classifier, compute_type="bfloat16").predictor().predict(records)
    assert rounded == load_exported(mindir, compute_type="bfloat16").predict(records) != exact
    for one, other in zip(rounded, exact, strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-2)
    with pytest.raises(ConfigError) as error:
        load_exported(mindir, compute_type="bfloat16", backend=Backend.COMPOSED)
    assert (error.value.key, error.value.value) == ("compute_type", "bfloat16")


def test_a_deep_network_with_relative_positions(tmp_path: Path) -> None:
    architecture = ARCHITECTURE.replace(use_relative_positions=True, num_hidden_layers=3, num_hidden_groups=3)
    folder = make_folder(tmp_path / "run", "token_classification", architecture)
    records = [{"text": text} for text in TEXTS]
    file = exported(portable_model(folder), tmp_path / "deep")
    answers = load_exported(file, backend=Backend.COMPOSED).predict(records)
    assert_close(answers, ModelFolder.load(folder).predictor().predict(records))


def test_the_description_says_what_the_file_needs(mindir: Path) -> None:
    described = json.loads(mindir.with_suffix(".json").read_text())
    assert described["task"] == "classification" and described["labels"] == TASK_INFOS["classification"]["labels"]
    assert described["max_seq_length"] == 40 and described["do_lower_case"] is True
    assert [each["name"] for each in described["inputs"]] == ["input_ids", "input_mask", "segment_ids"]
    assert all(each["shape"] == ["batch", "length"] for each in described["inputs"])
    assert described["architecture"]["hidden_size"] == 32


def test_a_file_that_computes_something_else_is_not_left_behind(
    portable: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what a killed export has left."""
    other = make_folder(tmp_path / "other", "regression")
    (tmp_path / "out" / "unfinished-albert-killed").mkdir(parents=True)
    (tmp_path / "out" / "unfinished-albert-killed" / ".scratch-of-albert").touch()
    monkeypatch.setattr("src.inference.exporting.load_mindir", lambda *_: ModelFolder.load(other).network())
    with pytest.raises(CheckpointError, match="outputs of a batch"):
        exported(portable, tmp_path / "out" / "model")
    assert list((tmp_path / "out").iterdir()) == []


def test_differences_are_seen(portable: Predictor) -> None:
    def shifted(*inputs: Any) -> Any:
        return portable.network(*inputs) + 1e-3

    with pytest.raises(CheckpointError, match=r"logits of a batch of 1 x 9 differs by 1\.0e-03"):
        check(portable, shifted)


def test_outputs_of_another_shape_are_seen(portable: Predictor) -> None:
    with pytest.raises(CheckpointError, match=r"have the shapes \[\(1, 2\)\], not \[\(1, 3\)\]"):
        check(portable, lambda *inputs: portable.network(*inputs)[:, :2])
    with pytest.raises(CheckpointError, match=r"have the shapes \[\(1, 3\), \(1, 3\)\], not \[\(1, 3\)\]"):
        check(portable, lambda *inputs: (portable.network(*inputs),) * 2)


def test_a_huge_entry_hides_no_difference_and_a_nan_is_seen(classifier: Path) -> None:
    """The scores of forbidden tokens are -1e30; others are compared all the same."""
    model = portable_model(classifier)
    scores = np.array([[-1e30, 1.0, 1.0]])

    def huge(*_: Any) -> Tensor:
        return Tensor(scores)

    huge.input_columns, huge.output_names = model.network.input_columns, model.network.output_names
    model.network = huge
    with pytest.raises(CheckpointError, match="computes something else: logits"):
        check(model, lambda *_: Tensor(np.add(scores, [[0, 0, 1e-3]])))
    assert check(model, lambda *_: Tensor(np.add(scores, [[1e23, 0, 0]]))) == 0.0
    scores[:] = np.nan
    with pytest.raises(CheckpointError, match="the network's outputs are not finite: its weights are damaged"):
        check(model, lambda *_: Tensor(scores))


def test_a_beam_wider_than_a_short_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASK_INFOS, "squad_v2", TASK_INFOS["squad_v2"] | {"start_n_top": 12, "end_n_top": 15})
    folder = make_folder(tmp_path / "run", "squad_v2")
    records = [RECORDS["squad_v2"](text) for text in TEXTS]
    answers = load_exported(exported(portable_model(folder), tmp_path / "beam")).predict(records)
    assert_close(answers, ModelFolder.load(folder).predictor().predict(records))


def test_a_threshold_that_is_given_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exported_with: list[Any] = []
    monkeypatch.setattr(
        export, "export_model", lambda model, *_: exported_with.append(model.task_info.values_with_defaults())
    )
    folder = make_folder(tmp_path / "run", "squad_v2")
    settings = {"export_ckpt_file": str(folder), "export_file_name": str(tmp_path / "qa"), "device_target": "CPU"}
    for given in (None, 0.25):
        export.main(ExportConfig(null_threshold=given, **settings))
    assert [task_info["null_threshold"] for task_info in exported_with] == [0.5, 0.25]


@pytest.mark.parametrize("size", [10, 20_000])
def test_an_export_that_finds_no_room_is_named(portable: Predictor, tmp_path: Path, size: int) -> None:
    with no_file_beyond(size), pytest.raises(OSError, match=re.escape(str(tmp_path / "out" / "model.mindir"))):
        exported(portable, tmp_path / "out" / "model")
    assert list((tmp_path / "out").iterdir()) == []


def test_an_export_that_mindspore_writes_nothing_of_is_named(
    portable: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MindSpore may do so where a disk is full."""
    monkeypatch.setattr(ms, "export", lambda *_, **__: None)
    with pytest.raises(OSError, match=re.escape(str(tmp_path / "out" / "model.mindir"))):
        exported(portable, tmp_path / "out" / "model")
    assert list((tmp_path / "out").iterdir()) == []


def test_places_that_cannot_be_written_to(portable: Predictor, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"File exists: .*/file"):
        exported(portable, tmp_path / "file" / "model")
    (tmp_path / "model.json").mkdir()
    with pytest.raises(DataError, match=r"model\.json is a folder"):
        export_model(portable, tmp_path / "model", MINDIR)
    with pytest.raises(DataError, match=r"n\.vocab\.txt .*256 .*255"):
        export_model(portable, tmp_path / ("n" * 246), MINDIR)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "model.json"}
    for name in (f"{tmp_path}/model.mindir", ".", ".."):
        with pytest.raises(ConfigError, match="DIR/NAME or NAME without an ending") as error:
            ExportConfig(export_ckpt_file="run", export_file_name=name).check_together()
        assert (error.value.key, error.value.value) == ("export_file_name", name)
    ExportConfig(export_ckpt_file="run", export_file_name=f"{tmp_path}/model-1.0").check_together()


def test_a_place_may_have_any_name_and_more_than_a_gibibyte_stays_in_one_file(
    portable: Predictor, mindir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MindSpore would split the weights; here it takes a thousand bytes for too much."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(serialization, "TOTAL_SAVE", 1)
    file = exported(portable, Path("输出 dir/模型 (v2)"))
    assert file == Path("输出 dir/模型 (v2).mindir")
    assert sorted(path.suffix for path in file.parent.iterdir()) == [".json", ".mindir", ".txt"]
    assert load_exported(file).predict([{"text_a": "a"}]) == load_exported(mindir).predict([{"text_a": "a"}])
    assert serialization.TOTAL_SAVE == 1


def test_weights_that_no_file_holds_are_refused_before_work(
    portable: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("src.inference.exporting.MAX_WEIGHT_BYTES", 1000)
    with pytest.raises(DataError, match=r"weights take 0\.00 GiB"):
        export_model(portable, tmp_path / "out" / "model", MINDIR)
    assert not (tmp_path / "out").exists()


def test_one_name_has_one_format(copy: Path, portable: Predictor) -> None:
    with pytest.raises(DataError, match=r"model\.mindir .*model\.json"):
        export_model(portable, copy.with_suffix(""), ONNX)
    assert load_exported(copy).predict([{"text_a": "a"}])
    for name in ("out/", "out/."):
        with pytest.raises(ConfigError, match="that is a folder") as error:
            ExportConfig(export_ckpt_file="run", export_file_name=name).check_together()
        assert (error.value.key, error.value.value) == ("export_file_name", name)


def test_an_older_export_outlives_a_disk_that_fails(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_folder(tmp_path / "other", "regression")
    before = {file.name: file.read_bytes() for file in copy.parent.glob("model.*")}

    def fail(path: Path) -> None:
        if path.suffix == ".json":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr("src.inference.exporting.sync_to_disk", fail)
    with pytest.raises(OSError, match="Input/output error"):
        exported(portable_model(other), copy.with_suffix(""))
    assert {file.name: file.read_bytes() for file in copy.parent.glob("model.*")} == before


def test_a_description_with_longer_rows_than_the_network_takes(copy: Path) -> None:
    description = copy.with_suffix(".json")
    content = json.loads(description.read_text()) | {"max_seq_length": 400}
    del content["checksum"]
    description.write_text(json.dumps(content))
    predictor = load_exported(copy, backend=Backend.COMPOSED)
    assert predictor.task_info.max_seq_length == ARCHITECTURE.max_position_embeddings
    assert predictor.predict([{"text_a": "a" * 100}])[0]["truncated"]


def test_rows_of_a_fixed_length_must_suit_the_model(portable: Predictor, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="export_seq_length is 41, allowed is 1 to 40 tokens for this model"):
        export_model(portable, tmp_path / "out" / "model", AIR, length=41)
    assert not (tmp_path / "out").exists()


def test_air_needs_ascend(classifier: Path, tmp_path: Path) -> None:
    config = ExportConfig(
        export_ckpt_file=str(classifier),
        export_file_name=str(tmp_path / "out" / "model"),
        file_format=AIR,
        device_target="CPU",
    )
    with pytest.raises(DeviceError, match=r"AIR .*Ascend.*CPU"):
        export.main(config)
    assert not (tmp_path / "out").exists()


def test_two_processes_write_the_same_bytes(classifier: Path, tmp_path: Path) -> None:
    words = ["--export_ckpt_file", str(classifier), "--device_target", "CPU", "--export_file_name"]
    for name in ("first", "second"):
        command = [sys.executable, "export.py", *words, str(tmp_path / name / "m")]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    for file in (tmp_path / "first").iterdir():
        assert file.read_bytes() == (tmp_path / "second" / file.name).read_bytes(), file.name


def test_variables_of_a_node_have_one_order(tmp_path: Path) -> None:
    """MindSpore writes the names in the order of their addresses."""
    file = exported(portable_model(make_folder(tmp_path / "run", "fill_mask", ONE_LAYER)), tmp_path / "out" / "m")
    content = file.read_bytes()
    assert b"$mlm_logits$rows" in content
    file.write_bytes(content.replace(b"$mlm_logits$rows", b"$rows$mlm_logits"))
    make_reproducible(file)
    assert file.read_bytes() == content


# --- bad input ---


def damage(file: Path, change: str) -> None:
    """Break one of the exported files."""
    description = file.with_suffix(".json")
    if change == "no description":
        description.unlink()
    elif change == "cut description":
        description.write_text(description.read_text()[:100])
    elif change == "later version":
        description.write_text(description.read_text().replace('"format_version": 1', '"format_version": 2'))
    elif change == "cut":
        file.write_bytes(file.read_bytes()[:-1000])
    elif change == "missing":
        file.unlink()
    else:
        vocabulary = file.with_name("model.vocab.txt")
        vocabulary.write_text(vocabulary.read_text() + "more\n")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("no description", "model.json is missing"),
        ("cut description", "model.json is damaged"),
        ("later version", "format_version is 2, allowed is 1"),
        ("cut", "model.mindir is damaged or does not belong to model.json"),
        ("missing", "model.mindir is missing"),
        ("other vocabulary", "is not the vocabulary that model.mindir was exported with"),
    ],
)
def test_damaged_files_are_refused(copy: Path, change: str, sentence: str) -> None:
    damage(copy, change)
    with pytest.raises(UserError) as raised:
        load_exported(copy)
    assert sentence in str(raised.value)


def test_a_file_that_is_no_mindir(tmp_path: Path) -> None:
    (tmp_path / "x.mindir").write_bytes(np.random.default_rng(0).bytes(5000))
    with pytest.raises(DataError, match="cannot be loaded: it may be damaged"):
        load_mindir(tmp_path / "x.mindir")


def test_weights_that_do_not_fit_what_lies_beside_them(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run", "regression")
    described = json.loads((folder / "albert_config.json").read_text())

    def with_config(**changes: Any) -> None:
        (folder / "albert_config.json").write_text(json.dumps(described | changes))

    with_config(hidden_size=64)
    with pytest.raises(CheckpointError, match=r"hidden_size is 64, but albert-1\.ckpt was trained with 32"):
        ModelFolder.load(folder).predictor()
    task_info = read_task_info(folder).clipped_to(ARCHITECTURE)
    scores = TASKS[task_info.task].scores(ARCHITECTURE, task_info)
    save_checkpoint(scores, folder, 1, {})
    with pytest.raises(CheckpointError, match="another architecture"):
        ModelFolder.load(folder).predictor()
    with_config(vocab_size=70)
    with pytest.raises(CheckpointError, match=r"says vocab_size 70, but the vocabulary vocab\.txt beside it has 63"):
        ModelFolder.load(folder).predictor()
    (folder / "albert_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"no albert_config\.json lies beside"):
        ModelFolder.load(folder).predictor()


def test_a_tasks_yaml_may_be_given_but_its_keys_not_as_flags(tmp_path: Path) -> None:
    needed = ["--export_ckpt_file", "run", "--export_file_name", "x"]
    files = sorted(Path(export.__file__).parent.glob("task_*_config.yaml"))
    assert len(files) == len({spec.config for spec in TASKS.values() if spec.config} | {MultitaskConfig})
    for file in files:
        config = load_config(ExportConfig, ["--config_path", str(file), *needed])
        assert config.file_format == MINDIR and config.device_target == "auto"
    with pytest.raises(ConfigError, match="--epoch_num is not a key"):
        load_config(ExportConfig, [*needed, "--epoch_num", "3"])
    with pytest.raises(ConfigError, match="export_seq_length") as raised:
        load_config(ExportConfig, [*needed, "--file_format", ONNX, "--export_seq_length", "64"])
    assert raised.value.value == 64
