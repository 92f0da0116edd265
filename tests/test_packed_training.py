"""Packed batches: every row once, in few sizes, with the losses and gradients of each text by itself."""

from collections.abc import Callable

import numpy as np
import pytest

from model_utils.native_code import find_compiler
from src.albert_config import AlbertConfig
from src.albert_for_finetune import (
    AlbertForMultipleChoice,
    AlbertForPairScores,
    AlbertForQuestionAnswering,
    AlbertForSequenceClassification,
    AlbertForSpanSearch,
    AlbertForTokenClassification,
)
from src.albert_networks import ScoresNetwork, TrainingNetwork
from src.data.packing import SIZE_STEP, Packing, deal_rows
from src.finetune_eval_model import (
    MultipleChoiceScores,
    PairVectors,
    QuestionAnsweringScores,
    SequenceClassificationScores,
    SpanSearchScores,
    TokenClassificationScores,
)
from tests.helpers.tiny_model import TINY, assert_same_gradients, metrics_and_gradients

SMALL = TINY.replace(
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    classifier_dropout_prob=0.0,
    initializer_range=0.2,
)
LENGTHS = np.array([8, 12, 8, 12])
Make = Callable[[AlbertConfig], ScoresNetwork]
CASES: dict[str, tuple[type[TrainingNetwork], Make, int]] = {
    "classification": (AlbertForSequenceClassification, lambda config: SequenceClassificationScores(config, 3), 1),
    "tokens": (AlbertForTokenClassification, lambda config: TokenClassificationScores(config, 3), 1),
    "spans": (AlbertForQuestionAnswering, QuestionAnsweringScores, 1),
    "span search": (AlbertForSpanSearch, lambda config: SpanSearchScores(config, 2, 2), 1),
    "multiple choice": (AlbertForMultipleChoice, lambda config: MultipleChoiceScores(config, 2), 2),
    "pairs, mean": (AlbertForPairScores, lambda config: PairVectors(config, "mean"), 2),
    "pairs, max": (AlbertForPairScores, lambda config: PairVectors(config, "max"), 2),
}


def columns_of(texts_per_row: int, tokens: bool) -> dict[str, np.ndarray]:
    """Four rows of LENGTHS tokens, of two texts each two tokens more and less than half of them."""
    random, width = np.random.default_rng(7), LENGTHS.max()
    places = np.arange(width)
    real = places < LENGTHS[:, None]
    if texts_per_row == 2:
        real &= (places % 2 == 0) | (places < LENGTHS[:, None] - 4)
    labels = random.integers(0, 3, (4, width) if tokens else 4) % (3 if tokens else 2)
    columns = {
        "input_ids": random.integers(1, 50, (4, width)) * real,
        "input_mask": real,
        "segment_ids": (places >= 4) * real,
        "p_mask": 1 - real * (places > 1),
        "label_ids": labels,
        "start_positions": np.array([2, 3, 4, 11]),
        "end_positions": np.array([2, 5, 7, 11]),
        "is_impossible": np.array([0, 1, 0, 1]),
    }
    weights = {"sequence_weights": random.random(4), "label_weights": random.random((4, width)) * real}
    whole = {name: column.astype(np.int32) for name, column in columns.items()}
    return whole | {name: column.astype(np.float32) for name, column in weights.items()}


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler is installed")
@pytest.mark.parametrize("case", CASES)
def test_a_packed_batch_is_its_texts_one_by_one(case: str) -> None:
    """The last text of the packed batch is empty: its row only fills up."""
    losses, make, texts = CASES[case]
    relative = {"use_relative_positions": True, "max_relative_position": 3} if case == "tokens" else {}
    config = SMALL.replace(recompute=case in ("spans", "multiple choice"), **relative)
    columns = columns_of(texts, case == "tokens")
    rows = [
        {n: x[i : i + 1] if x.ndim == 1 else x[i : i + 1, : LENGTHS[i]] for n, x in columns.items()} for i in range(3)
    ]
    alone = metrics_and_gradients(losses(make(config)), *rows)
    real = np.array([True, True, True, False])
    columns["sequence_weights"] = columns["sequence_weights"] * real
    columns["label_weights"] = columns["label_weights"] * real[:, None]
    scores = make(config)
    packing = Packing(texts, int(LENGTHS.max()) if scores.reads_tokens else 1)
    packed = columns | packing.pack(columns, real, 48)
    [(metrics, gradients)] = metrics_and_gradients(losses(scores, packed=True), packed)
    np.testing.assert_allclose(metrics, sum(each for each, _ in alone), rtol=1e-5)
    expected = {name: sum(each[name] for _, each in alone) for name in gradients}
    assert_same_gradients(gradients, expected, 2e-6)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("random", [None, 0, 1])
def test_rows_are_dealt_evenly(random: int | None, ranks: int) -> None:
    lengths = np.random.default_rng(5).integers(8, 385, 163)
    order = np.arange(163) if random is None else np.random.default_rng(random).permutation(163)
    generator = None if random is None else np.random.default_rng(random)
    rows = deal_rows(lengths, 8, order, generator, ranks)
    assert rows.shape == (21, 8)
    assert sorted(rows[:20].ravel()) == sorted(order[:160])
    assert rows[20].tolist() == [*order[160:], *[-1] * 5]
    of_batches, of_ranks = lengths[rows[:20]].sum(1), lengths[rows[:20]].reshape(20, ranks, -1).sum(2)
    assert of_batches.std() < 0.25 * np.sqrt(8) * lengths.std()
    means = of_ranks.mean(0)
    assert means.max() - means.min() < 0.1 * means.mean(), "no rank has the longest rows each time"
    assert of_ranks.max(1).mean() < 1.1 * means.mean(), "all wait for the one with the most tokens"
    again = None if random is None else np.random.default_rng(random)
    assert (deal_rows(lengths, 8, order, again, ranks) == rows).all()


def test_each_batch_has_the_smallest_size_that_fits() -> None:
    packing = Packing(1, 1, (64, 128))
    tokens = np.array([1, 63, 64, 127, 128, 300])
    assert packing.sizes_for(tokens).tolist() == [64, 64, 128, 128, 144, 304]
    assert Packing(1, 1).sizes_for(tokens).tolist() == [16, 64, 80, 128, 144, 304]
    assert all(size % SIZE_STEP == 0 for size in Packing(1, 1).sizes_for(np.arange(1, 100)))


@pytest.mark.parametrize("texts", [1, 2])
def test_a_packed_batch_has_every_token_in_its_place(texts: int) -> None:
    columns = columns_of(texts, tokens=False)
    real = np.array([True, False, True, True])
    packed = Packing(texts, 12).pack(columns, real, 48)
    assert {column.dtype for column in packed.values()} == {np.dtype(np.int32)}
    begins, places = packed["begins"], packed["token_indices"]
    assert begins.shape == (4 * texts + 1,) and places.shape == (4 * texts, 12)
    for row in range(4):
        for text in range(texts):
            own = [columns[name][row, text::texts] for name in ("input_ids", "segment_ids", "input_mask")]
            ids, segments = (each[own[2] == 1] if real[row] else each[:0] for each in own[:2])
            number = row * texts + text
            slots = slice(begins[number], begins[number + 1])
            np.testing.assert_array_equal(packed["packed_ids"][0, slots], ids)
            np.testing.assert_array_equal(packed["packed_segments"][0, slots], segments)
            np.testing.assert_array_equal(packed["positions"][slots], np.arange(len(ids)))
            expected = [*np.arange(len(ids)) + begins[number], *[47] * (12 - len(ids))]
            np.testing.assert_array_equal(places[number], expected)
