"""transformers' BERT as a special case of ALBERT: layers of their own, no projection of the embeddings."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model_utils import convert_ckpt
from model_utils.convert_ckpt import ConvertConfig
from model_utils.errors import CheckpointError, ConfigError
from src import finetune_eval_model as heads
from src.albert_config import AlbertConfig
from src.model_folder import ModelFolder, read_task_info
from tests.helpers.converted_outputs import computed, pre_training_outputs
from tests.helpers.trained_folders import ARCHITECTURE, head_of, make_folder

SMALL = {
    "vocab_size": 120,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 32,
}
ARCHITECTURE_OF_BERT = ARCHITECTURE.replace(embedding_size=32, share_parameters="none", embedding_projection=False)
HEADS = {
    "BertForSequenceClassification": (heads.SequenceClassificationScores, head_of("classification", "a", "b", "c")),
    "BertForTokenClassification": (heads.TokenClassificationScores, head_of("token_classification", "a", "b", "c")),
    "BertForQuestionAnswering": (heads.QuestionAnsweringScores, head_of("squad_v1")),
}


def save_oracle(torch: ModuleType, transformers: ModuleType, folder: Path, architecture: str, **settings: Any) -> Any:
    """Return a model of transformers, saved, with every weight drawn anew."""
    oracle = getattr(transformers, architecture)(transformers.BertConfig(**SMALL, **settings)).eval()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in oracle.named_parameters():
            parameter.normal_(1.0 if name.endswith("LayerNorm.weight") else 0.0, 0.15, generator=generator)
    oracle.save_pretrained(folder)
    return oracle


def convert(source: str, target: str, given: Path, output: Path) -> Path:
    convert_ckpt.main(ConvertConfig(source=source, target=target, input=str(given), output=str(output)))
    return output


def batch() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ids, mask and segments, (2, 13) int32, with padding in the second row."""
    mask = (np.arange(13) < np.array([[13], [9]])).astype(np.int32)
    ids = np.random.default_rng(5).integers(1, SMALL["vocab_size"], mask.shape).astype(np.int32) * mask
    return ids, mask, (np.arange(13) >= 5).astype(np.int32) * mask


def ask(torch: ModuleType, oracle: Any) -> Any:
    columns = [torch.from_numpy(column.astype(np.int64)) for column in batch()]
    with torch.no_grad():
        return oracle(**dict(zip(("input_ids", "attention_mask", "token_type_ids"), columns, strict=True)))


def assert_close(found: np.ndarray, expected: Any) -> None:
    difference = np.abs(found - expected.numpy()).max() / np.abs(expected.numpy()).max()
    assert found.shape == expected.shape and difference < 1e-5


def assert_same_files(there: Path, back: Path) -> None:
    expected = load_file(there / "model.safetensors")
    found = load_file(back / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], value) for name, value in expected.items())


def test_weights_with_the_names_of_the_first_transformers(tmp_path: Path) -> None:
    """Those of bert-base-uncased."""
    make_folder(tmp_path / "own", "classification", ARCHITECTURE_OF_BERT, classifier_hidden_size=0)
    there = convert("mindspore", "hf", tmp_path / "own", tmp_path / "hf")
    weights = load_file(there / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in weights.items()
    }
    assert len(old.keys() - weights.keys()) == 2 * (1 + 2 * ARCHITECTURE_OF_BERT.num_hidden_layers)
    save_file(old, there / "model.safetensors")
    back = convert("mindspore", "hf", convert("hf", "mindspore", there, tmp_path / "again"), tmp_path / "back")
    save_file(weights, there / "model.safetensors")
    assert_same_files(there, back)


@pytest.mark.oracles
@pytest.mark.parametrize("architecture", ["BertForPreTraining", "BertForMaskedLM", "BertModel"])
def test_pre_trained(torch: ModuleType, transformers: ModuleType, tmp_path: Path, architecture: str) -> None:
    oracle = save_oracle(torch, transformers, tmp_path / "hf", architecture, hidden_act="gelu_new")
    ours = convert("hf", "mindspore", tmp_path / "hf", tmp_path / "ours")
    found = pre_training_outputs(ours, *batch(), needed=("albert.",))
    expected = ask(torch, oracle)
    if architecture == "BertModel":
        assert_close(found[0], expected.last_hidden_state)
        assert_close(found[1], expected.pooler_output)
    else:
        assert_close(found[2], expected[0])
    if architecture == "BertForPreTraining":
        assert_close(found[3], expected.seq_relationship_logits)
    back = convert("mindspore", "hf", ours, tmp_path / "back")
    assert_same_files(tmp_path / "hf", back)
    assert json.loads((back / "config.json").read_text())["architectures"] == [architecture]
    _, report = getattr(transformers, architecture).from_pretrained(back, output_loading_info=True)
    assert not any(report.values())


@pytest.mark.oracles
@pytest.mark.parametrize("architecture", HEADS)
def test_heads(torch: ModuleType, transformers: ModuleType, tmp_path: Path, architecture: str) -> None:
    network_class, task = HEADS[architecture]
    labels = {"id2label": dict(enumerate(task.labels))} if task.labels else {}
    oracle = save_oracle(torch, transformers, tmp_path / "hf", architecture, **labels)
    ours = convert("hf", "mindspore", tmp_path / "hf", tmp_path / "ours")
    assert read_task_info(ours) == task
    outputs = (len(task.labels),) if task.labels else ()
    network = network_class(AlbertConfig.from_json(ours / "albert_config.json"), *outputs)
    expected = ask(torch, oracle)
    for name, value in zip(network.output_names, computed(ours, network, *batch()), strict=True):
        assert_close(value, expected[name])
    assert_same_files(tmp_path / "hf", convert("mindspore", "hf", ours, tmp_path / "back"))


def test_a_bert_of_this_project_goes_there_and_back(tmp_path: Path) -> None:
    ours = make_folder(tmp_path / "ours", "classification", ARCHITECTURE_OF_BERT, classifier_hidden_size=0)
    back = convert("hf", "mindspore", convert("mindspore", "hf", ours, tmp_path / "hf"), tmp_path / "back")
    weights, expected = ModelFolder.load(back).weights, ModelFolder.load(ours).weights
    assert weights.keys() == expected.keys()
    assert all(np.array_equal(weights[name], value) for name, value in expected.items())
    assert AlbertConfig.from_json(back / "albert_config.json") == ARCHITECTURE_OF_BERT
    assert read_task_info(back) == read_task_info(ours)


def test_a_bert_whose_file_does_not_say_so_is_named(tmp_path: Path) -> None:
    ours = make_folder(tmp_path / "ours", "classification", ARCHITECTURE_OF_BERT, classifier_hidden_size=0)
    config = convert("mindspore", "hf", ours, tmp_path / "hf") / "config.json"
    described = json.loads(config.read_text())
    del described["model_type"]
    config.write_text(json.dumps(described))
    with pytest.raises(CheckpointError, match=r"classifier_dropout is not a key.*model_type: bert"):
        convert("hf", "mindspore", config.parent, tmp_path / "back")
    del described["classifier_dropout"]
    del described["albert_mindspore"]
    config.write_text(json.dumps(described))
    with pytest.raises(CheckpointError, match=r"weights of a BERT.*model_type: bert"):
        convert("hf", "mindspore", config.parent, tmp_path / "back")


def test_forms_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"hidden_size \(32\)") as error:
        ARCHITECTURE.replace(embedding_projection=False)
    assert (error.value.key, error.value.value) == ("embedding_size", 16)
    shared = ARCHITECTURE.replace(embedding_size=32, embedding_projection=False)
    ours = make_folder(tmp_path / "ours", "classification", shared, classifier_hidden_size=0)
    with pytest.raises(CheckpointError, match="embedding_projection"):
        convert("mindspore", "hf", ours, tmp_path / "hf")
    (tmp_path / "config.json").write_text('{"model_type": "roberta"}')
    with pytest.raises(CheckpointError, match="roberta"):
        AlbertConfig.from_json(tmp_path / "config.json")
