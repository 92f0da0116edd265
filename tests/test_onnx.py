"""ONNX files: any batch and length, checked by onnxruntime, which then answers as the checkpoint does."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor

import export
import predict
from model_utils.errors import CheckpointError, DataError, UserError
from src.albert_networks import ScoresNetwork
from src.finetune_eval_model import EncoderOutputs
from src.inference import onnx_network
from src.inference.deploy_config import ONNX, ExportConfig, PredictConfig
from src.inference.exported_model import OnnxSession, load_exported
from src.inference.exporting import export_model
from src.inference.onnx_network import write_network
from src.inference.predictor import Predictor
from src.model_folder import ModelFolder
from src.tasks import TASKS
from tests.helpers.answers import assert_close
from tests.helpers.exported_records import RECORDS, TEXTS
from tests.helpers.trained_folders import ARCHITECTURE, ONE_LAYER, make_folder

# Each network has three layers.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "relative positions in groups": {
        "use_relative_positions": True,
        "max_relative_position": 5,
        "num_hidden_groups": 3,
        "hidden_act": "gelu",
    },
    "inner groups": {"inner_group_num": 2, "num_hidden_groups": 2, "hidden_act": "relu", "type_vocab_size": 1},
    "a BERT": {"share_parameters": "none", "embedding_projection": False, "embedding_size": 32},
    "shared attention": {"share_parameters": "attention", "type_vocab_size": 3, "layer_norm_eps": 1e-3},
    "shared feed-forward": {"share_parameters": "ffn", "num_attention_heads": 1},
}


def portable_model(folder: Path, embeddings: bool = False) -> Predictor:
    return ModelFolder.load(folder).predictor(embeddings, portable=True)


def exported(model: Predictor, name: Path) -> Path:
    """NAME.onnx."""
    export_model(model, name, ONNX)
    return name.with_name(f"{name.name}.onnx")


@pytest.fixture(scope="module")
def onnx() -> ModuleType:
    return pytest.importorskip("onnx")


@pytest.fixture(scope="module")
def classifier_onnx(classifier: Path) -> Path:
    return exported(portable_model(classifier), classifier.parent / "out" / "model")


@pytest.mark.oracles
@pytest.mark.parametrize(
    ("task", "settings"), [*((task, {}) for task in RECORDS), ("token_classification", {"crf": True})]
)
def test_onnxruntime_answers_as_the_checkpoint(
    task: str, settings: dict[str, Any], tmp_path: Path, onnx: ModuleType
) -> None:
    """Thresholds, windows and decoding included; answers do not depend on the other rows of a batch."""
    is_embeddings = task == "embeddings"
    folder = make_folder(tmp_path / "run", "classification" if is_embeddings else task, ONE_LAYER, **settings)
    model = portable_model(folder, is_embeddings)
    file = exported(model, tmp_path / "out" / task)
    onnx.checker.check_model(file, full_check=True)
    graph = onnx.load(file).graph
    assert [value.name for value in graph.input] == list(model.network.input_columns)
    assert [value.name for value in graph.output] == list(model.network.output_names)
    described = json.loads(file.with_suffix(".json").read_text())
    for value, column in zip(graph.input, described["inputs"], strict=True):
        assert [axis.dim_param for axis in value.type.tensor_type.shape.dim] == column["shape"]
    for value in graph.output:
        axes = [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
        assert axes[0] == "batch"
        assert axes[1:2] == ["length"] or value.name not in model.network.per_token_outputs

    from_onnx = load_exported(file)
    records = [RECORDS[task](text) for text in TEXTS]
    answers = from_onnx.predict(records)
    assert_close(answers, ModelFolder.load(folder).predictor(is_embeddings).predict(records))
    for record, answer in zip(records, answers, strict=True):
        TASKS[task].answer.model_validate(answer, extra="forbid")
        assert_close(from_onnx.predict([record])[0], answer)
    names = {path.name for path in file.parent.iterdir()}
    assert names == {f"{task}.onnx", f"{task}.json", f"{task}.vocab.txt"}


@pytest.mark.oracles
@pytest.mark.parametrize("changes", ARCHITECTURES.values(), ids=list(ARCHITECTURES))
def test_every_architecture_computes_the_same(changes: dict[str, Any], tmp_path: Path, onnx: ModuleType) -> None:
    """export_model compares on several shapes and raises where they differ; each weight is stored once."""
    architecture = ARCHITECTURE.replace(num_hidden_layers=3, **changes)
    folder = make_folder(tmp_path / "run", "token_classification", architecture)
    model = portable_model(folder)
    stored = {tensor.name: tensor.dims for tensor in onnx.load(exported(model, tmp_path / "model")).graph.initializer}
    for weight in model.network.get_parameters():
        if not weight.name.startswith(onnx_network.OPTIONAL_WEIGHTS):
            assert sorted(stored.pop(weight.name)) == sorted(weight.shape), weight.name
    assert all(np.prod(dims) <= 11 * 8 for dims in stored.values()), stored  # constants


@pytest.mark.oracles
def test_the_commands(classifier: Path, tmp_path: Path) -> None:
    name = tmp_path / "out" / "m"
    export.main(ExportConfig(export_ckpt_file=str(classifier), export_file_name=str(name), file_format=ONNX))
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text_a": text}) + "\n" for text in TEXTS))
    where = {"input": str(tmp_path / "in.jsonl"), "output": str(tmp_path / "out.jsonl")}
    assert predict.main(PredictConfig(model=f"{name}.onnx", **where)) == 0
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    expected = ModelFolder.load(classifier).predictor().predict([{"text_a": text} for text in TEXTS])
    assert_close([answer["probabilities"] for answer in answers], [answer["probabilities"] for answer in expected])


@pytest.mark.oracles
def test_a_file_that_computes_something_else_is_not_left_behind(
    classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_network, "MASKED_SCORE", -1.0)
    with pytest.raises(CheckpointError, match="computes something else"):
        exported(portable_model(classifier), tmp_path / "out" / "model")
    assert list((tmp_path / "out").iterdir()) == []


def scores_of(classifier: Path) -> ScoresNetwork:
    return portable_model(classifier).network.scores


def test_the_same_weights_have_the_same_bytes(classifier: Path) -> None:
    assert write_network(scores_of(classifier)) == write_network(scores_of(classifier))


def test_what_onnx_files_cannot_hold_is_refused_before_work(
    classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NewHead(EncoderOutputs):
        pass

    with pytest.raises(DataError, match=r"NewHead .* MINDIR"):
        write_network(NewHead(ARCHITECTURE))
    scores = scores_of(classifier)
    scores.extra = Parameter(Tensor([0.0], ms.float32), name="albert.encoder.extra")
    with pytest.raises(DataError, match=r"albert\.encoder\.extra"):
        write_network(scores)
    model = portable_model(classifier)
    monkeypatch.delitem(onnx_network.ACTIVATIONS, "gelu_new")
    monkeypatch.setattr("src.inference.exporting.load_onnxruntime", lambda: None)
    with pytest.raises(DataError, match=r"hidden_act gelu_new .* MINDIR"):
        exported(model, tmp_path / "out" / "model")
    assert not (tmp_path / "out").exists()


def test_a_missing_onnxruntime_is_named(classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"onnxruntime .*pip install -r requirements-onnx\.txt"):
        exported(portable_model(classifier), tmp_path / "out" / "model")
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match=r"onnxruntime .*pip install -r requirements-onnx\.txt"):
        OnnxSession(tmp_path / "model.onnx")


def test_a_missing_onnx_is_named(classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UserError, match=r"needs onnx \(.*pip install -r requirements-onnx\.txt"):
        exported(portable_model(classifier), tmp_path / "out" / "model")
    assert not (tmp_path / "out").exists()


@pytest.mark.oracles
def test_damaged_and_older_files_are_refused(classifier_onnx: Path, tmp_path: Path) -> None:
    for file in classifier_onnx.parent.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    copy = tmp_path / classifier_onnx.name
    described = json.loads(copy.with_suffix(".json").read_text())
    del described["checksum"]
    inputs, outputs = described["inputs"], described["outputs"]
    for key, value in (("inputs", []), ("inputs", inputs[:2]), ("outputs", [*outputs, outputs[0]])):
        copy.with_suffix(".json").write_text(json.dumps(described | {key: value}))
        with pytest.raises(DataError, match=rf"the {key} .*, its task needs"):
            load_exported(copy)
    described["inputs"][0]["shape"] = [2, 40]
    copy.with_suffix(".json").write_text(json.dumps(described))
    with pytest.raises(DataError, match=r"shape \(2, 40\) only: export the model again"):
        load_exported(copy)
    copy.write_bytes(copy.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"model\.onnx is damaged or does not belong to model\.json"):
        load_exported(copy)
    for content in (b"", copy.read_bytes(), np.random.default_rng(0).bytes(5000)):
        copy.write_bytes(content)
        with pytest.raises(DataError, match=r"model\.onnx cannot be loaded by onnxruntime 1\."):
            OnnxSession(copy)
