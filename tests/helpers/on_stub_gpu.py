"""Networks on a GPU of stub_cuda: `python -m tests.helpers.on_stub_gpu` prints a JSON object, case -> calls by name."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor

from model_utils.device import setup_device
from src.albert_for_finetune import AlbertForSequenceClassification, AlbertForSpanSearch
from src.albert_for_pre_training import AlbertForPreTraining
from src.albert_networks import TrainingNetwork
from src.finetune_eval_model import AnsweringNetwork, FillMaskScores, SequenceClassificationScores, SpanSearchScores
from src.training.optimizer import build_optimizer
from src.training.run_plan import LossScale
from src.training.train_step import TrainStep
from tests.helpers.stub_cuda import LOG
from tests.helpers.tiny_model import OPTIMIZER_SETTINGS, TINY, batch

CONFIG = TINY.replace(num_hidden_layers=1, compute_type="float16")
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
LABELS = np.array([0, 1, 2], np.int32)
COLUMNS = batch(CONFIG) | {
    "label_ids": LABELS,
    "p_mask": np.zeros((3, 12), np.int32),
    "positions": np.ones((3, 2), np.int32),
    "start_positions": LABELS,
    "end_positions": LABELS,
    "is_impossible": LABELS // 2,
}


def calls_of(act: Callable[[], object]) -> list[str]:
    """Return the calls that the libraries get meanwhile."""
    log = Path(os.environ[LOG])
    before = log.stat().st_size
    act()
    with log.open("rb") as file:
        file.seek(before)
        return file.read().decode().split("\n")[:-1]


def update(network: TrainingNetwork, optimizer: str = "AdamWeightDecay") -> list[str]:
    """Return the calls of the second update, whose metrics are not read."""
    settings = OPTIMIZER_SETTINGS.replace(name=optimizer)
    step = TrainStep(network, build_optimizer(network.trainable_params(), settings, 10), LossScale("dynamic"))
    step.train([COLUMNS])["loss"].asnumpy()
    return calls_of(lambda: step.train([COLUMNS]))


def answers(scores: Any) -> list[str]:
    """Return the calls of a prediction."""
    network = AnsweringNetwork(scores.set_train(False))
    outputs = network(*(Tensor(COLUMNS[name]) for name in network.input_columns))
    first = outputs[0] if isinstance(outputs, tuple) else outputs
    return calls_of(first.asnumpy)


def cases() -> dict[str, Callable[[], list[str]]]:
    """Updates and answers by name, few that have all operations: each is compiled for seconds."""
    further = {"use_relative_positions": True, "max_relative_position": 4, "recompute": True, "compute_type": "float32"}
    return {
        "pre-training": lambda: update(AlbertForPreTraining(CONFIG)),
        "pre-training otherwise": lambda: update(AlbertForPreTraining(CONFIG.replace(**further, **DROPOUT)), "Lamb"),
        "classification": lambda: update(
            AlbertForSequenceClassification(SequenceClassificationScores(CONFIG.replace(**DROPOUT), 3)), "Adam"
        ),
        "spans or none": lambda: update(AlbertForSpanSearch(SpanSearchScores(CONFIG, 2, 2))),
        "answers: masked words": lambda: answers(FillMaskScores(CONFIG)),
        "answers: spans or none": lambda: answers(SpanSearchScores(CONFIG, 2, 2)),
    }


if __name__ == "__main__":
    setup_device("GPU")
    assert ms.get_context("device_target") == "GPU"
    print(json.dumps({name: run() for name, run in cases().items()}))
