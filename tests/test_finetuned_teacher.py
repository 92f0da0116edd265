"""Fine-tuning with a teacher: the distance to its logits in every task, a run that learns from one, what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from mindspore import Tensor
from scipy.special import log_softmax, rel_entr, softmax

import run_classifier
from model_utils.errors import ConfigError
from src.albert_config import AlbertConfig
from src.albert_for_finetune import (
    AlbertForMultiLabel,
    AlbertForMultipleChoice,
    AlbertForPairScores,
    AlbertForQuestionAnswering,
    AlbertForRegression,
    AlbertForSequenceClassification,
    AlbertForSpanSearch,
    AlbertForTokenClassification,
)
from src.albert_networks import TrainingNetwork
from src.finetune_eval_model import (
    MultipleChoiceScores,
    QuestionAnsweringScores,
    SequenceClassificationScores,
    SpanSearchScores,
    TokenClassificationScores,
)
from src.finetuning.finetuned_teacher import check_teacher
from src.model_folder import ModelFolder
from src.nn.losses import divergence
from tests.helpers.classifier_run import config_of, read, train_classifier, write_classifier_data
from tests.helpers.tiny_model import KEY, TINY, batch
from tests.helpers.trained_folders import make_folder

TEMPERATURE = 3.0
SMALL = TINY.replace(num_hidden_layers=1, initializer_range=0.3)
CASES: dict[str, tuple[Callable[[AlbertConfig], TrainingNetwork], list[tuple[int, ...]]]] = {
    "classification": (
        lambda config: AlbertForSequenceClassification(SequenceClassificationScores(config, 3)),
        [(4, 3)],
    ),
    "regression": (lambda config: AlbertForRegression(SequenceClassificationScores(config, 1)), [(4, 1)]),
    "several labels": (lambda config: AlbertForMultiLabel(SequenceClassificationScores(config, 3)), [(4, 3, 2)]),
    "multiple choice": (lambda config: AlbertForMultipleChoice(MultipleChoiceScores(config, 2)), [(4, 2)]),
    "tokens": (lambda config: AlbertForTokenClassification(TokenClassificationScores(config, 3)), [(4, 12, 3)]),
    "spans": (lambda config: AlbertForQuestionAnswering(QuestionAnsweringScores(config)), [(4, 12), (4, 12)]),
    "span search": (lambda config: AlbertForSpanSearch(SpanSearchScores(config, 2, 2)), [(4, 12), (4, 12), (4, 2)]),
}


class FixedTeacher:
    """Teacher with the same logits for every batch."""

    def __init__(self, logits: list[np.ndarray]) -> None:
        self.fixed_logits = logits

    def targets(self, columns: dict[str, Tensor]) -> tuple[Tensor, ...]:
        return tuple(map(Tensor, self.fixed_logits))


def columns_of(network: TrainingNetwork) -> dict[str, np.ndarray]:
    """`batch` with what the heads of fine-tuning need: four rows of 12 tokens."""
    random = np.random.default_rng(2)
    columns = batch(rows=4)
    shape = (4, 12) if "label_weights" in network.weight_columns else (4,)
    is_regression = isinstance(network, AlbertForRegression)
    has_several = isinstance(network, AlbertForMultiLabel)
    answers = {"start_positions": [3, 4, 4, 3], "end_positions": [5, 4, 4, 5], "is_impossible": [0, 1, 1, 0]}
    columns |= {name: np.array(values, np.int32) for name, values in answers.items()}
    labels = random.integers(0, 2, (4, 3) if has_several else shape)
    columns |= {"label_ids": labels.astype(np.float32 if is_regression or has_several else np.int32)}
    columns |= {"p_mask": 1 - columns["input_mask"], "sequence_weights": random.random(4, np.float32)}
    return columns | {"label_weights": random.random((4, 12), np.float32)}


def outputs_of(network: TrainingNetwork, columns: dict[str, np.ndarray]) -> list[float]:
    return [float(metric.asnumpy()) for metric in network(*network.inputs(columns), KEY)]


def distance(logits: np.ndarray, teacher_logits: np.ndarray) -> np.ndarray:
    """Return scipy's divergence of probabilities times the squared temperature; of single logits the squares."""
    if logits.shape[-1] == 1:
        return ((logits - teacher_logits) ** 2)[..., 0]
    probabilities, teacher_probabilities = (softmax(x / TEMPERATURE, -1) for x in (logits, teacher_logits))
    return TEMPERATURE**2 * rel_entr(teacher_probabilities, probabilities).sum(-1)


def test_tokens_that_are_no_answer_add_no_distance() -> None:
    logits = np.array([[0.5, -1.0, -1e30]], np.float32)
    teacher_logits = np.array([[0.1, 0.7, -1e30]], np.float32)
    found = divergence(Tensor(logits), Tensor(teacher_logits), 1.0).asnumpy()
    log_probabilities, teacher_log_probabilities = (log_softmax(x[:, :2], -1) for x in (logits, teacher_logits))
    expected = (np.exp(teacher_log_probabilities) * (teacher_log_probabilities - log_probabilities)).sum()
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_the_distance_is_added_to_the_loss_of_the_labels(case: str) -> None:
    make, shapes = CASES[case]
    network = make(SMALL)
    columns = columns_of(network)
    untaught = outputs_of(network, columns)
    inputs = (*(Tensor(columns[name]) for name in network.input_columns), KEY)
    texts = inputs[: network.text_inputs]
    further = inputs[network.text_inputs :]
    outputs = network.scores.encode(texts, further)
    pairs = network.logits_of(outputs, network.scores.backbone_texts(texts), further)
    logits = [pair[0].asnumpy() for pair in pairs]
    assert [values.shape for values in logits] == shapes
    random = np.random.default_rng(5)
    targets = [np.where(x < -1e20, x, random.normal(0, 2, x.shape)).astype(np.float32) for x in logits]
    network = make(SMALL)
    network.teach(FixedTeacher(targets), 0.7, TEMPERATURE)
    taught = outputs_of(network, columns)
    expected = sum(
        (pair[1].asnumpy() * distance(values, target)).sum()
        for pair, values, target in zip(pairs, logits, targets, strict=True)
    )
    assert network.metric_names[-1] == "teacher_loss"
    assert taught[-1] == pytest.approx(expected, rel=1e-4)
    assert taught[0] == pytest.approx(untaught[0] + 0.7 * taught[-1], rel=1e-5)
    assert taught[1:-1] == pytest.approx(untaught[1:], rel=1e-6)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classifier_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def teacher(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_classifier(data, tmp_path_factory.mktemp("teacher") / "run")


@pytest.mark.parametrize("length_buckets", [0, 2], ids=["packed", "padded"])
def test_a_smaller_model_learns_from_a_teacher(data: Path, teacher: Path, tmp_path: Path, length_buckets: int) -> None:
    changes = {"teacher": teacher, "length_buckets": length_buckets, "albert_cfg.hidden_size": 16}
    run_classifier.main(config_of(data, tmp_path / "run", **changes))
    assert read(tmp_path / "run/eval_results.json")["accuracy"] >= 0.9
    records = [json.loads(line) for line in (tmp_path / "run/train_log.jsonl").read_text().splitlines()]
    assert records[-1]["teacher_loss"] < 0.3 * records[0]["teacher_loss"]


def test_a_teacher_has_a_head_of_its_own_form(data: Path, tmp_path: Path) -> None:
    teacher = make_folder(tmp_path / "teacher", "classification", labels=["bad", "good"])
    where = {"vocab_file_path": teacher / "vocab.txt", "feature_dir": tmp_path / "features"}
    run_classifier.main(config_of(data, tmp_path / "run", train_steps=3, teacher=teacher, **where))
    (first, *_) = (json.loads(line) for line in (tmp_path / "run/train_log.jsonl").read_text().splitlines())
    assert first["teacher_loss"] > 0


def test_a_teacher_of_other_labels_is_refused(data: Path, teacher: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="labels"):
        run_classifier.main(config_of(data, tmp_path / "run", teacher=teacher, label_list="good,bad"))


def test_a_teacher_of_another_vocabulary_is_refused(data: Path, teacher: Path, tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text((data / "vocab.txt").read_text() + "another\n")
    with pytest.raises(ConfigError, match="vocabulary"):
        run_classifier.main(config_of(data, tmp_path / "run", teacher=teacher, vocab_file_path=vocabulary))


def test_a_teacher_needs_a_training(data: Path, teacher: Path) -> None:
    with pytest.raises(ConfigError, match="do_train"):
        config_of(data, None, do_train=False, load_finetune_checkpoint_path=teacher, teacher=teacher)


@pytest.mark.parametrize("losses", [AlbertForRegression, AlbertForPairScores])
def test_scores_have_no_temperature(data: Path, teacher: Path, losses: type[TrainingNetwork]) -> None:
    config = config_of(data, None, teacher=teacher, temperature=3.0)
    task = SimpleNamespace(spec=SimpleNamespace(losses=losses), config=config)
    with pytest.raises(ConfigError, match="temperature"):
        check_teacher(ModelFolder.load(teacher), task, teacher)
