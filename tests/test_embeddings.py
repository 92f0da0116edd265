"""Vectors of texts: every pooling against the network's own states, exported, and as sentence-transformers has them."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from mindspore import Tensor

from export import main as export
from model_utils.convert_ckpt import ConvertConfig
from model_utils.convert_ckpt import main as convert
from model_utils.errors import ConfigError
from model_utils.schema import load_config
from src.inference.deploy_config import ExportConfig
from src.inference.exported_model import load_exported
from src.model_folder import ModelFolder
from src.tasks.embeddings import POOLINGS
from tests.helpers.trained_folders import make_folder

TEXTS = ["good", "a film", "so so", "a" * 30]
RECORDS = [{"text_a": text} for text in TEXTS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model") / "run", "classification")


def vectors_of(answers: list[dict]) -> np.ndarray:
    return np.array([answer["pooled"] for answer in answers])


@pytest.fixture(scope="module")
def expected_vectors(folder: Path) -> dict[str, np.ndarray]:
    """Vectors of TEXTS by pooling, by numpy from the states of each text by itself."""
    model = ModelFolder.load(folder)
    network = model.network(embeddings=True)
    vectors: dict[str, list[np.ndarray]] = {pooling: [] for pooling in POOLINGS}
    for text in TEXTS:
        tokenizer = model.tokenizer
        ids = np.array([[tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id]], np.int32)
        states, pooled = network(Tensor(ids), Tensor(np.ones_like(ids)), Tensor(np.zeros_like(ids)))
        states = states.asnumpy()[0]
        pools = {"pooler": pooled.asnumpy()[0], "cls": states[0], "mean": states.mean(0), "max": states.max(0)}
        for pooling in POOLINGS:
            vectors[pooling].append(pools[pooling])
    return {pooling: np.array(rows) for pooling, rows in vectors.items()}


@pytest.mark.parametrize("pooling", POOLINGS)
def test_vectors_are_pooled_states(folder: Path, expected_vectors: dict[str, np.ndarray], pooling: str) -> None:
    model = ModelFolder.load(folder)
    expected = expected_vectors[pooling]
    vectors = vectors_of(model.predictor(embeddings=True, pooling=pooling).predict(RECORDS))
    np.testing.assert_allclose(vectors, expected, atol=2e-6)
    normalised = vectors_of(model.predictor(embeddings=True, pooling=pooling, normalise=True).predict(RECORDS))
    np.testing.assert_allclose(normalised, expected / np.linalg.norm(expected, axis=1)[:, None], atol=2e-6)


def test_an_exported_encoder_gives_the_same_vectors(folder: Path, tmp_path: Path) -> None:
    words = ["--export_ckpt_file", str(folder), "--export_file_name", str(tmp_path / "encoder")]
    export(load_config(ExportConfig, [*words, "--export_embeddings", "true"]))
    exported = load_exported(tmp_path / "encoder.mindir", pooling="mean", normalise=True)
    predictor = ModelFolder.load(folder).predictor(embeddings=True, pooling="mean", normalise=True)
    found, expected = (vectors_of(each.predict(RECORDS)) for each in (exported, predictor))
    np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize("settings", [{"pooling": "mean"}, {"normalise": True}])
def test_other_tasks_have_no_vectors(folder: Path, settings: dict) -> None:
    with pytest.raises(ConfigError, match="embeddings"):
        ModelFolder.load(folder).predictor(**settings)


@pytest.mark.oracles
def test_mean_and_length_one_are_those_of_sentence_transformers(
    tmp_path: Path, torch: ModuleType, transformers: ModuleType
) -> None:
    """Its modules Transformer, Pooling (mean) and Normalize, computed from transformers' states."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "a", "film", "so", "##a"]
    source = tmp_path / "bert"
    source.mkdir()
    (source / "vocab.txt").write_text("\n".join(words) + "\n")
    tokenizer = transformers.BertTokenizer(str(source / "vocab.txt"))
    tokenizer.save_pretrained(source)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    torch.manual_seed(3)
    config = transformers.BertConfig(vocab_size=len(words), max_position_embeddings=40, **sizes, initializer_range=0.3)
    bert = transformers.BertModel(config).eval()
    bert.save_pretrained(source)
    encoded = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = bert(**encoded).last_hidden_state
    mask = encoded["attention_mask"].unsqueeze(-1).float()
    means = (states * mask).sum(1) / mask.sum(1)
    expected = torch.nn.functional.normalize(means, dim=1).numpy()
    convert(ConvertConfig(source="hf", target="mindspore", input=str(source), output=str(tmp_path / "ours")))
    predictor = ModelFolder.load(tmp_path / "ours").predictor(embeddings=True, pooling="mean", normalise=True)
    np.testing.assert_allclose(vectors_of(predictor.predict(RECORDS)), expected, atol=2e-6)
