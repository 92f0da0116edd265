"""docs/template_task.py, the task that contributors copy."""

import importlib
from pathlib import Path

import pytest

from model_utils.errors import ConfigError
from model_utils.schema import load_config
from src.finetuning.finetune import finetune
from src.model_folder import ModelFolder
from src.tasks import HEADS, TASKS
from tests.conftest import ROOT
from tests.helpers.classifier_run import read
from tests.helpers.finetune_arguments import arguments
from tests.helpers.trained_folders import ARCHITECTURE, write_vocabulary

TEMPLATE = ROOT / "docs/template_task.py"
TEXTS = {"a b c": "sport|news", "d e": "art", "f": "news", "g h": "sport", "i": "art|news", "j k l": "sport|art|news"}


def test_the_template_trains_evaluates_and_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(TEMPLATE.read_text("utf-8").splitlines()) <= 120
    monkeypatch.syspath_prepend(TEMPLATE.parent)
    template = importlib.import_module("template_task")
    monkeypatch.setitem(TASKS, "topics", template.TOPICS)
    monkeypatch.setitem(HEADS, "topics", template.TOPICS.head)
    for name in ("train", "dev"):
        lines = ["text_a\tlabel", *(f"{text}\t{labels}" for text, labels in TEXTS.items())]
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    architecture = {
        key: getattr(ARCHITECTURE, key)
        for key in ("embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    }
    settings = {
        "data_dir": tmp_path,
        "label_list": "sport,news,art",
        "vocab_file_path": write_vocabulary(tmp_path),
        "feature_dir": tmp_path / "features",
        "save_finetune_checkpoint_path": tmp_path / "run",
        "max_seq_length": 16,
        "train_batch_size": 6,
        "train_steps": 80,
        "optimizer_cfg.AdamWeightDecay.learning_rate": 0.01,
    }
    model = architecture | {"max_position_embeddings": 40, "initializer_range": 0.2}
    finetune(load_config(template.TopicConfig, arguments(model, settings)), template.TopicTask)
    results = read(tmp_path / "run/eval_results.json")
    assert results["f1"] == 1.0
    predictor = ModelFolder.load(tmp_path / "run").predictor()
    answers = predictor.predict([{"text_a": text} for text in TEXTS])
    for answer, labels in zip(answers, TEXTS.values(), strict=True):
        likely = {label for label, probability in answer["probabilities"].items() if probability > 0.5}
        assert likely == set(labels.split("|"))
    settings |= {"teacher": tmp_path / "run", "save_finetune_checkpoint_path": tmp_path / "taught"}
    with pytest.raises(ConfigError, match="topics has no logits"):
        finetune(load_config(template.TopicConfig, arguments(model, settings)), template.TopicTask)
