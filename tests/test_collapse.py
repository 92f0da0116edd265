"""Fine-tuning that ends with the same answer for every row says so, and what to try; one that does not, does not."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import run_classifier
from model_utils.schema import load_config
from src.albert_config import AlbertConfig
from src.data.feature_files import Ragged
from src.data.ready_features import ReadySplit
from src.finetuning.finetune import describe_collapse
from src.tasks.classification import ClassifierTask
from src.tasks.classification_examples import ClassifierConfig
from src.tasks.multiple_choice import RaceConfig, RaceTask
from src.tasks.ner_data import NerSplit, Sentence
from src.tasks.spec import PreparedSplit
from src.tasks.token_classification import NerConfig, NerTask
from tests.helpers.classifier_run import classifier_arguments, write_classifier_data, write_table
from tests.helpers.race_files import write_race


def test_seeds_that_answer_with_the_majority_class_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nearly all texts to learn from are "good" ones, so that a few updates teach that all are."""
    write_classifier_data(tmp_path)
    (tmp_path / "train.tsv").write_text(
        "text_a\tlabel\n" + "the film is great\tgood\n" * 198 + "a dull film\tbad\n" * 2
    )
    changes = {"epoch_num": 1, "num_seeds": 2, "seed": 3}
    run_classifier.main(load_config(ClassifierConfig, classifier_arguments(tmp_path, tmp_path / "run", **changes)))
    sentence = (
        "collapsed: on the development set the label of every row is 'good'; try a quarter of the learning rate "
        "(0.005 -> 0.00125), a warm-up twice as long, or another seed"
    )
    for seed in (3, 4):
        results = json.loads((tmp_path / f"run/seed-{seed}/eval_results.json").read_text())
        assert results["collapsed"] is True and results["remarks"] == [sentence]
        assert results["accuracy"] == results["baselines"]["accuracy"]
    assert json.loads((tmp_path / "run/eval_results.json").read_text())["collapsed_seeds"] == [3, 4]
    said = capsys.readouterr().out
    assert said.count(sentence) == 2 and "collapsed: 2 of 2 seeds: 3, 4" in said


@pytest.mark.parametrize(
    ("weights", "width", "name", "beta2", "begins", "other_start"),
    [
        ("WEIGHTS", 768, "AdamWeightDecay", 0.999, "", ""),
        ("WEIGHTS", 256, "AdamWeightDecay", 0.999, "from weights of hidden_size 256", ""),
        ("", 256, "AdamWeightDecay", 0.98, "without load_pretrain_checkpoint_path", "0.03 (here 0.02)"),
        ("", 384, "AdamWeightDecay", 0.98, "without load_pretrain_checkpoint_path", ""),
        ("", 256, "Lamb", 0.999, "", ""),
    ],
)
def test_what_to_try_depends_on_the_weights(
    weights: str, width: int, name: str, beta2: float, begins: str, other_start: str
) -> None:
    settings = {"name": name, "learning_rate": 4e-4, "beta2": beta2}
    config = SimpleNamespace(do_train=True, load_pretrain_checkpoint_path=weights, optimizer_settings=lambda: settings)
    model = AlbertConfig(hidden_size=width, num_attention_heads=4)
    advice = "; try a quarter of the learning rate (0.0004 -> 0.0001), a warm-up twice as long, or another seed"
    assert describe_collapse("all is one", config, model).endswith(advice)
    settings |= {"learning_rate": 5e-5}
    found = describe_collapse("all is one", config, model)
    higher = f"; {begins} try learning_rate 0.0003 and beta2 0.98 (here 5e-05 and"
    assert higher in found if begins else "a quarter of the learning rate" in found
    assert found.endswith(f", and albert_cfg.initializer_range {other_start}") if other_start else "init" not in found


def test_a_start_that_is_too_large_is_named_where_it_was_taken() -> None:
    """Six layers of 384 collapse with 0.03 at the rate that is advised (docs/pretraining.md)."""
    settings = {"name": "AdamWeightDecay", "learning_rate": 3e-4, "beta2": 0.98}
    config = SimpleNamespace(do_train=True, load_pretrain_checkpoint_path="", optimizer_settings=lambda: settings)
    wide = AlbertConfig(hidden_size=384, num_attention_heads=6, initializer_range=0.03)
    found = describe_collapse("all is one", config, wide)
    assert "; try albert_cfg.initializer_range 0.02 (here 0.03), a quarter of the learning rate" in found
    settings |= {"learning_rate": 1e-4}
    assert describe_collapse("all is one", config, wide).endswith("initializer_range 0.02 (here 0.03)")


@pytest.mark.parametrize(
    ("scores", "right", "collapse"),
    [
        ([[1, 0], [3, 2], [0, -1]], [0, 1, 1], "the label of every row is 'bad'"),
        (
            [[1, 0]] * 199 + [[0, 1]],
            [1] * 110 + [0] * 90,
            "the label of 99.5% of the rows is 'bad', and no other prediction is right",
        ),
        ([[1, 0]] * 990 + [[0, 1]] * 8, [0] * 986 + [1] * 8 + [0] * 4, ""),  # a rare class, of which half is found
        ([[1, 0]] * 199 + [[0, 1]], [0] * 199 + [1], ""),
        ([[1, 0], [3, 2], [0, 1]], [0, 1, 1], ""),
        ([[1, 0], [3, 2], [0, -1]], [0, 0, 0], ""),
        ([[2.5], [2.504], [2.5]], [1.0, 2.0, 3.0], "the score of every text is about 2.5"),
        ([[2.5], [2.6], [2.5]], [1.0, 2.0, 3.0], ""),
        ([[2.5], [2.5], [2.5]], None, ""),
    ],
)
def test_classes_and_scores(tmp_path: Path, scores: list, right: list | None, collapse: str) -> None:
    write_table(tmp_path / "train.tsv", 9, 1)
    changes = {"num_class": 1} if len(scores[0]) == 1 else {"label_list": "bad,good"}
    arguments = classifier_arguments(tmp_path, tmp_path / "run", vocab_file_path="vocab.txt", **changes)
    task = ClassifierTask(load_config(ClassifierConfig, arguments), tokenizer=None)
    columns = {} if right is None else {"label_ids": None}
    records = SimpleNamespace(columns=columns, array=lambda _: np.array(right))
    outputs = {"logits": np.float32(scores)}
    result = task.evaluate(PreparedSplit(ReadySplit("dev", Path()), records), outputs, task.task_info)
    assert result.collapse == collapse


@pytest.mark.parametrize(("favourite", "collapse"), [(1, "the answer of every row is 'B'"), (None, "")])
def test_choices(tmp_path: Path, favourite: int | None, collapse: str) -> None:
    passage = {"article": "a b", "questions": ["c _"], "options": [["a", "b", "c", "d"]], "answers": ["A"]}
    write_race(tmp_path, {"middle": [passage], "high": [passage]}, ("dev",))
    right = np.array([0, 1, 2])
    arrays = {"labels": right, "levels": np.zeros(3, int), "question_ids": np.array(["a", "b", "c"])}
    arrays["option_counts"] = np.full(3, 4)
    task = RaceTask(RaceConfig(data_dir=str(tmp_path), vocab_file_path="vocab.txt", do_train=False), None)
    logits = np.eye(4)[right if favourite is None else np.full(3, favourite)]
    records = SimpleNamespace(array=arrays.__getitem__)
    result = task.evaluate(PreparedSplit(ReadySplit("dev", Path()), records), {"logits": logits}, task.task_info)
    assert result.collapse == collapse


@pytest.mark.parametrize(
    ("gold", "tag", "collapse"),
    [("B-DISH", 0, "no word of any sentence is an entity"), ("B-DISH", 1, ""), ("O", 0, "")],
)
def test_entities(gold: str, tag: int, collapse: str) -> None:
    task = NerTask(NerConfig(label_list=("O", "B-DISH"), vocab_file_path="vocab.txt", do_train=False), None)
    split = NerSplit("dev", [Sentence(("soup", "now"), (gold, "O"))], task.labels, None, 16)
    arrays = {"words": np.array([[0, 1], [0, 2]]), "sentence_words": np.array([2])}
    logits = np.zeros((4, 2))
    logits[1:3, tag] = 1.0
    records = SimpleNamespace(array=arrays.__getitem__)
    outputs = {"logits": Ragged(logits, np.array([4]))}
    assert task.evaluate(PreparedSplit(split, records), outputs, task.task_info).collapse == collapse
