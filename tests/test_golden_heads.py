"""google-research/albert's own figures for every head: losses to 5e-6, gradients to 1e-4 of the largest entry.

Outputs are in test_convert_google.py, with weights that were converted.
"""

from collections.abc import Callable
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from src.albert_config import AlbertConfig
from src.albert_for_finetune import (
    AlbertForMultipleChoice,
    AlbertForQuestionAnswering,
    AlbertForRegression,
    AlbertForSequenceClassification,
    AlbertForSpanSearch,
)
from src.finetune_eval_model import (
    MultipleChoiceScores,
    QuestionAnsweringScores,
    SequenceClassificationScores,
    SpanSearchScores,
)
from src.training.train_step import normalise_weights
from tests.helpers import google_figures as google
from tests.helpers.tiny_model import outputs_and_gradients

NO_KEY = Tensor(0, ms.int32)
BEAM = 5  # of the figures, for starts and for ends


def interleave(column: np.ndarray) -> np.ndarray:
    """(B, 4 * L) choice after choice -> token by token."""
    return column.reshape(len(column), 4, -1).transpose(0, 2, 1).reshape(len(column), -1)


def columns_of(task: str, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """google's inputs under this project's names and types."""
    names = {"labels": "label_ids", "start_position": "start_positions", "end_position": "end_positions"}
    columns = {names.get(name, name): value for name, value in given.items()}
    for name, value in columns.items():
        kind = np.float32 if task == "sts-b" and name == "label_ids" else np.int32
        columns[name] = (interleave(value) if task == "race" and value.ndim == 2 else value).astype(kind)
    return columns | {"sequence_weights": np.ones(len(columns["input_ids"]), np.float32)}


def build(shared: Path, task: str, make: Callable[[AlbertConfig], nn.Cell]) -> tuple[nn.Cell, dict, dict]:
    """The network with google's weights, the figures by group, and the input columns."""
    folder = shared / "golden/google" / task
    network, figures = make(AlbertConfig.from_json(folder.parent / "albert_config.json")), google.load(folder)
    google.set_parameters(network, figures["param0"])
    network.set_train(False)
    return network, figures, columns_of(task, figures["in"])


HEADS = {
    "classifier": lambda config: AlbertForSequenceClassification(SequenceClassificationScores(config, 3)),
    "sts-b": lambda config: AlbertForRegression(SequenceClassificationScores(config, 1)),
    "race": lambda config: AlbertForMultipleChoice(MultipleChoiceScores(config, 4)),
    "squad_v1": lambda config: AlbertForQuestionAnswering(QuestionAnsweringScores(config)),
    "squad_v2_train": lambda config: AlbertForSpanSearch(SpanSearchScores(config, BEAM, BEAM)),
}


@pytest.mark.parametrize("task", HEADS)
def test_loss_and_gradients(shared: Path, task: str) -> None:
    network, figures, columns = build(shared, task, HEADS[task])
    batch = normalise_weights([columns], network.weight_columns)[0]
    outputs, gradients = outputs_and_gradients(network, batch)
    np.testing.assert_allclose(outputs[0], figures["out"]["loss"], rtol=5e-6)
    # Biases that move all scores under a softmax alike have the exact gradient 0: theirs is rounding noise.
    largest = max(np.abs(value).max() for value in figures["grad"].values())
    for name, gradient in gradients.items():
        expected = figures["grad"].get(name, np.zeros_like(gradient))
        tolerance = max(1e-4 * np.abs(expected).max(), 5e-7 * largest)
        np.testing.assert_allclose(gradient, expected, atol=tolerance, rtol=0, err_msg=name)


def test_teacher_forced_span_scores(shared: Path) -> None:
    network, figures, columns = build(shared, "squad_v2_train", HEADS["squad_v2_train"])
    scores, out = network.scores, figures["out"]
    sequence, _ = scores.albert(*(Tensor(columns[name]) for name in scores.input_columns[:3]), NO_KEY)
    p_mask = Tensor(columns["p_mask"].astype(np.float32))
    starts = scores.starts(sequence, p_mask)
    start_states = sequence[Tensor(np.arange(len(sequence))), Tensor(columns["start_positions"])]
    ends = scores.ends(sequence, start_states, p_mask).squeeze(1)
    np.testing.assert_allclose(ops.log_softmax(starts, -1).asnumpy(), out["start_log_probs"], atol=1e-5)
    np.testing.assert_allclose(ops.log_softmax(ends, -1).asnumpy(), out["end_log_probs"], atol=1e-5)
    np.testing.assert_allclose(scores.answerable(sequence, starts, NO_KEY).asnumpy(), out["cls_logits"], atol=1e-5)
