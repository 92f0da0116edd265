"""INT8 exports: integer arithmetic of dense layers, and refusal where the development metric falls."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore import Tensor

import export
from model_utils.errors import CheckpointError, UserError
from src.checkpoints.checkpoint_files import load_backbone
from src.finetune_eval_model import AnsweringNetwork, MultipleChoiceScores
from src.finetuning.int8_check import TASK_MAKERS, Int8Check, _RowNetwork
from src.inference import onnx_network
from src.inference.deploy_config import DYNAMIC, ONNX, ExportConfig
from src.inference.exported_model import OnnxSession, load_exported
from src.inference.onnx_graph import FLOAT
from src.inference.onnx_network import NetworkGraph, quantise_rows
from src.model_folder import ModelFolder
from src.tasks import TASKS
from src.tasks.embedding_pairs import EmbeddingsConfig
from tests.helpers.classifier_run import train_classifier, write_classifier_data
from tests.helpers.trained_folders import ARCHITECTURE, make_folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = write_classifier_data(tmp_path_factory.mktemp("data"))
    return train_classifier(data, data / "run")


def exported(run: Path, name: Path, int8: str = DYNAMIC, **settings: Any) -> Path:
    paths = {"export_ckpt_file": str(run), "export_file_name": str(name)}
    export.main(ExportConfig(file_format=ONNX, int8=int8, **paths, **settings))
    return name.with_name(f"{name.name}.onnx")


def test_every_task_that_is_trained_can_be_compared_but_vectors() -> None:
    assert {*TASK_MAKERS, EmbeddingsConfig} == {spec.config for spec in TASKS.values() if spec.config}
    assert EmbeddingsConfig not in TASK_MAKERS


@pytest.mark.oracles
def test_a_dense_layer_computes_in_integers(classifier: Path, tmp_path: Path) -> None:
    graph = NetworkGraph(ModelFolder.load(classifier).predictor(portable=True).network.scores, int8=True)
    product = graph.dense("albert.pooler", graph.node("Cast", graph.input("x", ("rows", 32)), to=FLOAT))
    graph.output("y", product, ("rows", 32))
    (tmp_path / "dense.onnx").write_bytes(graph.serialize())
    x = np.random.default_rng(0).integers(-300, 900, (5, 32)).astype(np.int32)
    (computed,) = OnnxSession(tmp_path / "dense.onnx")(Tensor(x))
    scale = np.float32(x.max() - x.min()) / np.float32(255)
    zero_point = np.rint(-x.min() / scale)
    integers = (np.clip(np.rint(x / scale) + zero_point, 0, 255) - zero_point).astype(np.int64)
    values, scales = quantise_rows(graph.weights["albert.pooler.weight"])
    assert (np.abs(values).max(1) == 127).all()
    expected = (integers @ values.T.astype(np.int64)) * (scale * scales) + graph.weights["albert.pooler.bias"]
    np.testing.assert_allclose(computed.asnumpy(), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.oracles
def test_answers_are_near_and_the_file_is_smaller(run: Path, tmp_path: Path) -> None:
    """With the development data that the run has recorded, or those of a yaml."""
    exact = exported(run, tmp_path / "exact", "none")
    small = exported(run, tmp_path / "small")
    yaml = tmp_path / "eval.yaml"
    yaml.write_text(f"data_dir: {run.parent}\nfeature_dir: {tmp_path}\nmax_seq_length: 128\n")
    again = exported(run, tmp_path / "again", eval_config_path=str(yaml))
    assert again.read_bytes() == small.read_bytes() and small.stat().st_size < 0.7 * exact.stat().st_size
    records = [{"text_a": text} for text in ("the film is lovely", "an awful plot", "dull dull dull")]
    answers = load_exported(small).predict(records)
    assert answers != load_exported(exact).predict(records)
    for answer, other in zip(answers, load_exported(exact).predict(records), strict=True):
        assert answer["label"] == other["label"]
        assert answer["probabilities"] == pytest.approx(other["probabilities"], abs=0.05)


@pytest.mark.oracles
def test_a_file_that_loses_too_much_is_not_left_behind(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ones = np.ones_like
    monkeypatch.setattr(onnx_network, "quantise_rows", lambda w: (ones(w, np.int8), ones(w[:, 0])))
    with pytest.raises(CheckpointError, match=r"accuracy of the dev split from 1\.0000 to 0\.\d{4}, .* is 0\.9950"):
        exported(run, tmp_path / "out" / "m")
    assert list((tmp_path / "out").iterdir()) == []
    assert exported(run, tmp_path / "out" / "m", max_loss=1).exists()


def test_a_comparison_without_data_is_refused(classifier: Path, tmp_path: Path) -> None:
    model = ModelFolder.load(classifier).predictor(portable=True)
    yaml = tmp_path / "eval.yaml"
    yaml.write_text("task_name: sst-2\ndata_dir: SST-2\n")
    refused = {"": r"config\.yaml is missing: give --eval_config_path", str(yaml): "labels is .*'so so'"}
    for config_path, sentence in refused.items():
        with pytest.raises(UserError, match=sentence):
            Int8Check(model, config_path, 0.005)


@pytest.mark.parametrize(
    ("task", "embeddings"), [("fill_mask", False), ("embedding_pairs", False), ("embedding_pairs", True)]
)
def test_tasks_without_a_development_split_are_refused(tmp_path: Path, task: str, embeddings: bool) -> None:
    model = ModelFolder.load(make_folder(tmp_path / "run", task)).predictor(embeddings, portable=True)
    with pytest.raises(UserError, match=f"{'embeddings' if embeddings else task} does not offer: use int8=none"):
        Int8Check(model, "", 0.005)


def test_choices_are_computed_one_by_one(tmp_path: Path) -> None:
    folder = ModelFolder.load(make_folder(tmp_path / "run", "multiple_choice"))
    scores = MultipleChoiceScores(ARCHITECTURE, num_choices=3)
    load_backbone(scores, folder.loaded, ("",))
    columns = [Tensor(np.random.default_rng(0).integers(0, 2, (4, 3 * 8)).astype(np.int32))] * 3
    network = folder.network(portable=True)
    computed = _RowNetwork(network, network, 3)(*columns)
    np.testing.assert_allclose(computed.asnumpy(), AnsweringNetwork(scores)(*columns).asnumpy(), atol=1e-5)
