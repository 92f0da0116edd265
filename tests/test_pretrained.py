"""The models in pretrained/: small enough to ship, complete, and better than chance at what texts mean."""

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import predict
from model_utils.convert_ckpt import ConvertConfig
from model_utils.convert_ckpt import main as convert
from model_utils.errors import ConfigError, DataError
from model_utils.schema import load_config
from src.inference.deploy_config import PredictConfig
from src.inference.record_files import NumberedRecord
from src.inference.text_search import TextSearch
from src.model_folder import ModelFolder
from tests.conftest import ROOT

FOLDER = ROOT / "pretrained/albert_small_en"
LARGEST = 12_000_000  # bytes
PAIRS = [
    ("A man is playing the guitar.", "Someone plays a guitar."),
    ("The company's profits fell sharply last year.", "Earnings of the firm dropped a lot."),
    ("Heavy rain flooded the streets.", "The roads were under water after the storm."),
    ("She graduated from university in June.", "She finished her studies at college."),
]


@pytest.mark.parametrize("folder", sorted(FOLDER.parent.iterdir()), ids=lambda folder: folder.name)
def test_the_folders_are_small_and_complete(folder: Path) -> None:
    (weights,) = folder.glob("albert-*.ckpt")
    assert weights.stat().st_size < LARGEST
    model = ModelFolder.load(folder)
    assert {value.dtype.name for value in model.weights.values()} == {"float16"}
    assert model.tokenizer is not None and model.token_counts is not None
    sizes = [value.size for value in model.weights.values()]
    assert f"{sum(sizes) / 1e6:.1f} million weights" in (folder / "README.md").read_text("utf-8")


def test_sentences_that_mean_the_same_are_nearest() -> None:
    predictor = ModelFolder.load(FOLDER).predictor(embeddings=True, pooling="mean", normalise=True)
    first, second = (
        np.array([answer["pooled"] for answer in predictor.predict([{"text_a": text} for text in texts])])
        for texts in zip(*PAIRS, strict=True)
    )
    assert (first @ second.T).argmax(1).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("top_k", [1, 100])
def test_search_finds_what_means_the_same(tmp_path: Path, top_k: int) -> None:
    queries, collection, answers = (tmp_path / name for name in ("queries.txt", "collection.jsonl", "answers.jsonl"))
    queries.write_text("".join(f"{first}\n" for first, _ in PAIRS))
    records = [{"text_a": second, "id": index} for index, (_, second) in enumerate(PAIRS)]
    collection.write_text("".join(json.dumps(record) + "\n" for record in records))
    flags = ["--model", FOLDER, "--embeddings", "true", "--pooling", "mean", "--search", collection]
    flags += ["--top_k", top_k, "--input", queries, "--output", answers]
    assert predict.main(load_config(PredictConfig, list(map(str, flags)))) == 0
    for index, line in enumerate(answers.read_text().splitlines()):
        matches = json.loads(line)["matches"]
        assert matches[0]["record"] == records[index] and matches[0]["line"] == index + 1
        assert len(matches) == min(top_k, len(PAIRS))
        scores = [match["score"] for match in matches]
        assert scores == sorted(scores, reverse=True) and 0 < scores[0] <= 1 + 1e-6


def test_search_needs_vectors_and_records(tmp_path: Path) -> None:
    predictor = ModelFolder.load(FOLDER).predictor(embeddings=True)
    with pytest.raises(DataError):
        TextSearch(predictor, [])
    with pytest.raises(DataError, match="line 7"):
        TextSearch(predictor, [NumberedRecord(7, {"other": "a text"})])
    with pytest.raises(ConfigError, match="fill_mask"):
        TextSearch(ModelFolder.load(FOLDER).predictor(), [NumberedRecord(1, {"text_a": "a text"})])


@pytest.mark.oracles
def test_transformers_computes_the_same_states(tmp_path: Path, torch: ModuleType, transformers: ModuleType) -> None:
    convert(ConvertConfig(source="mindspore", target="hf", input=str(FOLDER), output=str(tmp_path / "hf")))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    model = transformers.AutoModel.from_pretrained(tmp_path / "hf").eval()
    text = PAIRS[1][0]
    with torch.no_grad():
        states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0).numpy()
    predictor = ModelFolder.load(FOLDER).predictor(embeddings=True, pooling="mean")
    (answer,) = predictor.predict([{"text_a": text}])
    assert answer["pooled"] == pytest.approx(states, abs=1e-5)
