"""Batches of a network: padded and packed ones give the same answers; few sizes, and every row once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from src.albert_config import PRESETS, AlbertConfig
from src.data.feature_cache import Features
from src.data.feature_files import Column, Ragged
from src.finetune_eval_model import PackedNetwork
from src.inference import network_batches
from src.inference.network_batches import PackedBatches, PaddedBatches, balanced_groups
from src.inference.predictor import Predictor
from src.model_folder import ModelFolder
from src.nn import fused_products
from src.tasks import TASKS
from src.training.flops import forward_flops
from tests.helpers.answers import assert_close
from tests.helpers.trained_folders import ARCHITECTURE, TASK_INFOS, make_folder, make_task_info

RELATIVE = ARCHITECTURE.replace(use_relative_positions=True, max_relative_position=5)
COLUMNS = ("input_ids", "input_mask", "segment_ids")


class Packed:
    """Stand-in with the attributes that PackedBatches reads of a PackedNetwork."""

    portable = False
    further_columns = ()

    def __init__(self, reads_tokens: bool) -> None:
        self.reads_tokens = reads_tokens


def features_of(lengths: list[int]) -> Features:
    """Rows whose tokens are numbered one after the other."""
    counts = np.array(lengths)
    ids = np.arange(1, counts.sum() + 1)
    values = {name: Ragged(column, counts) for name, column in zip(COLUMNS, (ids, ids * 0 + 1, ids % 2), strict=True)}
    return Features({name: Column("int32", 128, per_token=True) for name in COLUMNS}, values)


def packed_batches(reads_tokens: bool, tokens: int = 0, architecture: AlbertConfig = ARCHITECTURE) -> PackedBatches:
    task_info = make_task_info("classification", max_seq_length=128)
    return PackedBatches(Packed(reads_tokens), architecture, task_info, 1, tokens)


def assert_answers_as_padded(folder: Path, records: list[dict[str, Any]], tokens: tuple[int, ...]) -> None:
    """The packed network, with batches of so many tokens, answers as the same weights and padded batches."""
    calls = records, records[:1], records[-2:]  # shapes that fit are used again

    def answers(predictor: Predictor) -> list[Any]:
        return [predictor.predict(each) for each in calls]

    predictors = [ModelFolder.load(folder).predictor(batch_tokens=most) for most in tokens]
    packed = [answers(predictor) for predictor in predictors]
    assert all(isinstance(predictor.network, PackedNetwork) for predictor in predictors)
    padded = predictors[0]
    padded.network = ModelFolder.load(folder).network()
    texts_per_row = TASKS[padded.task_info.task].texts_per_row
    padded._batches = PaddedBatches(padded.network, padded.architecture, padded.task_info, texts_per_row)
    whole = padded.predict(records)  # answers do not depend on the other records of a call: test_predictor.py
    assert not any("error" in answer for answer in whole)
    expected = [whole, whole[:1], whole[-2:]]
    for found in packed:
        assert_close(found, expected)


RECORDS = {
    "multiple_choice": [
        {"article": "a b c" * length, "question": "who?", "options": ["a", "b c d", "e" * length, "f g"]}
        for length in range(1, 6)
    ],
    "fill_mask": [{"text": "a [MASK] b" + " c" * length + " [MASK]" * (length % 2)} for length in range(9)],
}
RECORDS |= {
    task: [{"context": "Who was it? Ann Lee, of York." * length, "question": "who?"} for length in range(1, 5)]
    for task in ("squad_v1", "squad_v2")
}
RECORDS["embedding_pairs"] = [{"text_a": "good" * length, "text_b": "a"} for length in range(1, 9)]
RECORDS["token_classification"] = [{"text": "ann lee of york" + " a" * length} for length in range(9)]


@pytest.mark.parametrize(
    ("task", "architecture"),
    [
        *(pytest.param(task, ARCHITECTURE, id=task) for task in TASK_INFOS),
        # No head knows of positions: one that reads first tokens and one that reads all.
        *(pytest.param(task, RELATIVE, id=f"{task}-relative") for task in ("classification", "token_classification")),
    ],
)
def test_texts_without_padding_are_answered_as_with_it(task: str, architecture: AlbertConfig, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run", task, architecture)
    of_pairs = [{"text_a": "good" * length, "text_b": "bad" * (length % 3)} for length in range(1, 12)]
    records = RECORDS.get(task, of_pairs)
    assert_answers_as_padded(folder, records, (0, 48))


def test_shared_weights_are_prepacked_when_the_network_is_made(tmp_path: Path) -> None:
    """And in no pass."""
    folder = make_folder(tmp_path / "run", "classification", ARCHITECTURE.replace(num_hidden_layers=3))
    before = fused_products.prepackings()
    predictor = ModelFolder.load(folder).predictor()
    assert fused_products.prepackings() - before == 6
    for text in ("good", "bad" * 9):
        predictor.predict([{"text_a": text}])
    assert fused_products.prepackings() - before == 6


@pytest.mark.parametrize("reads_tokens", [False, True])
@pytest.mark.parametrize("most", [0, 200])
def test_every_token_is_in_one_batch_in_its_place(reads_tokens: bool, most: int) -> None:
    lengths = [3, 128, 5, 64, 3, 3, 90, 17, 128, 128, 4] * 20
    features, batches = features_of(lengths), packed_batches(reads_tokens, most)
    ends = np.cumsum(lengths)
    seen = []
    for rows, (ids, segments, begins, positions, places) in batches.batches(features):
        real = rows[rows >= 0]
        seen.extend(real)
        total = begins[-1]
        assert (begins[len(real) :] == total).all() and total <= ids.shape[1]
        assert ids.shape == segments.shape == (1, len(positions)) and ids.shape[1] <= (most or 4096)
        assert len(places) == len(rows) == len(begins) - 1
        assert places.shape[1] == (128 if reads_tokens else 1) and places.max() < ids.shape[1]
        for number, row in enumerate(real):
            own = slice(begins[number], begins[number + 1])
            expected = np.arange(ends[row] - lengths[row], ends[row]) + 1
            np.testing.assert_array_equal(ids[0, own], expected)
            np.testing.assert_array_equal(segments[0, own], expected % 2)
            np.testing.assert_array_equal(positions[own], np.arange(lengths[row]))
            if reads_tokens:
                np.testing.assert_array_equal(places[number, : lengths[row]], np.arange(lengths[row]) + begins[number])
            assert places[number, 0] == begins[number]
    assert sorted(seen) == list(range(len(lengths)))


@pytest.mark.parametrize("most", [40, 100, 1000])
def test_parts_are_even_and_small_enough(most: int) -> None:
    tokens = np.random.default_rng(0).integers(1, 41, 300)
    parts = balanced_groups(tokens, most, 30)
    assert sorted(np.concatenate(parts)) == list(range(300))
    sizes = [tokens[part].sum() for part in parts]
    assert max(sizes) <= most and max(map(len, parts)) <= 30
    if most > 40:
        assert len(parts) <= 1.05 * max(tokens.sum() / most, 10) and max(sizes) - min(sizes) <= 5
    assert [part.tolist() for part in balanced_groups(np.array([7, 9]), 3, 0)] == [[1], [0]]


@pytest.mark.parametrize(("task", "share"), [("squad_v1", 4), ("squad_v2", 1)])
def test_rows_as_a_head_sees_them_are_no_more_than_fit(task: str, share: int) -> None:
    """Where spans are searched, the head's memory is that of so many full rows."""
    task_info = make_task_info(task, max_seq_length=128)
    batches = PackedBatches(Packed(reads_tokens=True), ARCHITECTURE, task_info, 1, 512)
    shapes = {places.shape for _, (*_, places) in batches.batches(features_of([128, *[5] * 300]))}
    assert max(rows for rows, _ in shapes) == share * 4 and {width for _, width in shapes} == {128}


def test_a_size_is_compiled_once_its_want_has_cost_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    architecture = PRESETS["albert_base"]
    monkeypatch.setattr(network_batches, "COMPILATION", 100 * forward_flops(architecture, 1, 1))

    def sizes(*requests: list[int]) -> list[int]:
        return [ids.shape[1] for each in requests for _, (ids, *_) in batches.batches(features_of(each))]

    batches = packed_batches(False, architecture=architecture)
    assert sizes([128], [100], [100], [100]) == [128, 128, 128, 128]  # 16 tokens too many each
    assert sizes(*[[100]] * 6) == [128] * 3 + [112] * 3
    assert sizes([20], [20], [128], [100], [128, 3]) == [112, 24, 128, 112, 160]
    batches = packed_batches(True, architecture=architecture)
    assert sizes([100, 110], [60, 60], [60, 60], [128]) == [224, 224, 128, 128]  # too narrow for the last one


def test_where_many_sizes_are_compiled_the_nearest_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_batches, "COMPILATION", 0)
    monkeypatch.setattr(network_batches, "MAX_COMPILED_SHAPES", 2)
    batches = packed_batches(False)
    requests = ([20], [128], [100], [100], [20], [128, 128], [100, 40])
    sizes = [ids.shape[1] for each in requests for _, (ids, *_) in batches.batches(features_of(each))]
    assert sizes == [24, 128, 128, 128, 24, 256, 256]  # one that none fits is compiled
