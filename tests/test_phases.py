"""Phases of a run: where they begin, the place in their data, and that interruptions change nothing."""

import itertools
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from model_utils.errors import ConfigError, DataError
from model_utils.rendezvous import Rendezvous
from src.albert_config import PRESETS
from src.checkpoints.checkpoint_files import list_checkpoints
from src.data.batches import Loading
from src.pretraining.pretraining_phases import describe, identity_of, plan_phases
from src.pretraining_data.checked_data import PretrainingData
from src.training.dry_run import dry_run
from src.training.phases import Phase, Phases
from src.training.ranks import Ranks
from src.training.run_folder import RunFolder
from src.training.run_log import RunLog
from src.training.run_plan import RunPlan
from src.training.trainer import Trainer
from tests.helpers.kills import kill_at
from tests.helpers.numpy_loop import NoSignals, Rows, Step, evaluation, log, make_config, make_identity, without_speed
from tests.helpers.pretraining_run import config_of


class NumberedRows:
    """An epoch of rows that are their own numbers."""

    def __init__(self, rows: int, rows_at_once: int) -> None:
        self.rows_at_once, self.batches_per_epoch = rows_at_once, rows // rows_at_once

    def width_shares(self) -> list[tuple[int, float]]:
        return [(0, 1.0)]

    def batches(self, epoch: int, start: int = 0) -> Iterator[dict[str, np.ndarray]]:
        for number in range(start, self.batches_per_epoch):
            first = 100 * epoch + number * self.rows_at_once
            yield {"rows": np.arange(first, first + self.rows_at_once)}


def rows_of(phases: Phases, steps: int, train_steps: int) -> list[list[int]]:
    """Rows of each phase, in the order in which updates get them."""
    rows: list[list[int]] = []
    for step in range(steps):
        phases.begin(step, step / train_steps)
        rows += [[] for _ in range(phases.number - len(rows))]
        rows[-1] += np.concatenate([batch["rows"] for batch in next(phases.micro_batches(step))]).tolist()
    return rows


def test_phases_of_one_source_go_on_where_the_last_one_stopped() -> None:
    a4, a8, b = NumberedRows(30, 4), NumberedRows(30, 8), NumberedRows(9, 3)
    phases = Phases(
        [
            Phase(a4, share=0.3, source="a"),
            Phase(b, share=0.1, source="b"),
            Phase(a8, 2, share=0.2, source="a"),
            Phase(b, share=0.4, source="b"),
        ]
    )
    first, second, third, fourth = rows_of(phases, 10, 10)
    assert phases.starts == [0, 3, 4, 6]
    assert first == list(range(12)) and second == [0, 1, 2]
    assert third == [*range(16, 24), *range(100, 124)]  # from the next multiple of 8; 24 to 29 fill no batch of 8
    assert fourth == [3, 4, 5, 6, 7, 8, 100, 101, 102, 103, 104, 105]
    assert phases.position(10) == (1, 2) and phases.epochs(10) == pytest.approx(5 / 3)


def test_rows_too_few_for_a_larger_batch_end_the_epoch() -> None:
    small, large = NumberedRows(100, 1), NumberedRows(100, 51)
    phases = Phases([Phase(small, share=0.9, source="a"), Phase(large, share=0.1, source="a")])
    assert rows_of(phases, 100, 100)[1][:2] == [100, 101]  # epoch 1, from its first row


def test_rows_in_a_circle_go_on_where_they_stopped_whatever_the_size_of_batches() -> None:
    """Where the circle begins in an epoch depends on the size of batches (FeatureDataset)."""
    small, large = NumberedRows(100, 7), NumberedRows(100, 16)
    phases = Phases(
        [Phase(small, share=0.4, source="a", shuffled=False), Phase(large, share=0.6, source="a", shuffled=False)]
    )
    for step in range(100):
        phases.begin(step, step / 100)
    used = 40 * 7
    assert phases.micro_batches_before(40) * 16 == used + 8  # the next multiple of 16
    assert phases.micro_batches_before(100) == phases.micro_batches_before(40) + 60
    assert phases.position(40) == (3, 0)


def test_a_phase_begins_at_a_share_of_the_run_whatever_its_rounding() -> None:
    phases = Phases([Phase(NumberedRows(8, 4), share=share) for share in (0.1, 0.2, 0.7)])
    rows_of(phases, 10, 10)
    assert phases.starts == [0, 1, 3]
    phases = Phases([Phase(NumberedRows(8, 4), share=share) for share in (0.1, 0.2, 0.7)])
    third = 0.3333333333
    thirds = Phases([Phase(NumberedRows(8, 4), share=share) for share in (third, third, 1 - 2 * third)])
    rows_of(thirds, 3000, 3000)
    assert thirds.starts == [0, 1000, 2000]
    phases.begin(5, 0.5)
    assert phases.starts == [0, 5, 5]  # the second one's time was over before it began
    assert phases.position(6) == (3, 0)


# --- in the loop ---


def three_phases() -> Phases:
    """The phases of 20 updates begin after 0, 7 and 15; make_config saves after every fifth."""
    small, large, other = Rows(), Rows(batches_per_epoch=2), Rows(lengths=(12,))
    large.rows_at_once = 2 * small.rows_at_once
    return Phases(
        [
            Phase(small, 2, 0.35, 1.0, "a", "small batches"),
            Phase(large, 1, 0.4, 0.5, "a", "large batches"),
            Phase(other, 3, 0.25, 0.25, "b", "long texts"),
        ]
    )


def fit_phases(folder: Path, step: Step | None = None, **arguments: Any) -> Step:
    config, step = make_config(folder, log_steps=6), step or Step()
    with RunFolder(folder, config) as run:
        Trainer(step, three_phases(), RunPlan(20), run, make_identity(), **arguments).fit()
    return step


@pytest.fixture(scope="module")
def undisturbed_phases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Step]:
    folder = tmp_path_factory.mktemp("phases")
    return folder, fit_phases(folder)


def test_every_phase_has_its_data_its_rate_and_its_records(undisturbed_phases: tuple[Path, Step]) -> None:
    folder, step = undisturbed_phases
    small = [100 * epoch + number for epoch in range(3) for number in range(5)][:14]
    # Of epoch 2 the first phase gave 4 batches of 4, which are all 2 batches of 8.
    large = [100 * epoch + number for epoch in (3, 4, 5, 6) for number in range(2)]
    other = [100 * epoch + number for epoch in range(3) for number in range(5)]
    assert step.seen == small + large + other
    assert step.rate_factors == [1.0] * 7 + [0.5] * 8 + [0.25] * 5
    records = log(folder)
    assert [(record["step"], record["phase"]) for record in records] == [
        *((1, 1), (2, 1), (5, 1), (6, 1), (7, 1)),
        *((12, 2), (15, 2), (18, 3), (20, 3)),
    ]
    assert [record["epoch"] for record in records[4:]] == [14 / 5, 11 / 2, 14 / 2, 9 / 5, 15 / 5]


def test_the_log_says_when_a_phase_begins(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    fit_phases(tmp_path)
    said = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert said.index("phase 1 of 3: small batches") == 0
    assert said.index("phase 2 of 3: large batches") == said.index("step 7/20") + 1
    assert said.index("phase 3 of 3: long texts") == said.index("step 15/20") + 1


@pytest.mark.parametrize("end", [3, 6, 7, 8, 13, 15, 16, 19])
def test_a_phase_that_is_interrupted_goes_on_as_if_it_was_not(
    tmp_path: Path, undisturbed_phases: tuple[Path, Step], monkeypatch: pytest.MonkeyPatch, end: int
) -> None:
    """Killed before the first checkpoint, around the borders after 7 and 15, and after one that lies on a border."""
    kill_at(monkeypatch, end)
    with pytest.raises(KeyboardInterrupt):
        fit_phases(tmp_path)
    step = fit_phases(tmp_path)
    folder, undisturbed = undisturbed_phases
    assert without_speed(log(tmp_path)) == without_speed(log(folder))
    assert step.seen == undisturbed.seen[-len(step.seen) :]
    assert step.rate_factors == undisturbed.rate_factors[end // 5 * 5 :]
    assert list_checkpoints(tmp_path)[0][1].name == "albert-20.ckpt"


def test_a_run_killed_twice_in_different_phases_changes_nothing(
    tmp_path: Path,
    undisturbed_phases: tuple[Path, Step],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    kill_at(monkeypatch, 3, 11, 17)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            fit_phases(tmp_path)
    fit_phases(tmp_path)
    assert without_speed(log(tmp_path)) == without_speed(log(undisturbed_phases[0]))
    assert re.findall(r"resuming after step (\d+)", capsys.readouterr().out) == ["10", "15"]


def test_an_evaluation_on_a_border_belongs_to_the_phase_before(tmp_path: Path) -> None:
    fit_phases(tmp_path, evaluation=evaluation(lambda _: {"f1": 0.5}, 7))
    evaluated = [(record["step"], record["phase"]) for record in log(tmp_path) if "eval_f1" in record]
    assert evaluated == [(7, 1), (14, 2), (20, 3)]
    assert [record["step"] for record in log(tmp_path)] == [1, 2, 5, 6, 7, 12, 14, 15, 18, 20]


def test_updates_in_the_queue_are_read_before_a_phase_begins(
    tmp_path: Path, undisturbed_phases: tuple[Path, Step]
) -> None:
    config = make_config(tmp_path, log_steps=6, enable_data_sink="true", data_sink_steps=4, save_checkpoint_steps=0)
    with RunFolder(tmp_path, config) as run:
        Trainer(Step(), three_phases(), RunPlan(20), run, make_identity()).fit()
    assert without_speed(log(tmp_path)) == without_speed(log(undisturbed_phases[0]))


def test_phases_begin_by_the_time_where_more_of_it_is_over_on_all_ranks_alike(tmp_path: Path) -> None:
    """Two ranks, threads here; each look at rank 0's clock is a second of the run's 10."""

    rendezvous = Rendezvous(2)

    def act(rank: int) -> tuple[list[int], list[float], list[float]]:
        config, step = make_config(tmp_path / "run", max_train_hours=1), Step()
        ranks, plan, seconds = Ranks(rank, 2, rendezvous, wait_minutes=0.5), RunPlan(200, 10.0), itertools.count(1.0)
        with RunFolder(config.save_checkpoint_path, config, ranks) as folder:
            trainer = Trainer(step, three_phases(), plan, folder, make_identity())
            trainer.signals = NoSignals()
            trainer.progress.clock = [lambda: next(seconds), lambda: 0.0][rank]
            trainer.fit()
        return trainer.phases.starts, step.rate_factors, step.elapsed

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(act, range(2))
    assert first == second
    starts, factors, _ = first
    assert len(starts) == 3 and 0 < starts[1] < starts[2] < len(factors) and 5 < len(factors) <= 10
    assert factors == [1.0] * starts[1] + [0.5] * (starts[2] - starts[1]) + [0.25] * (len(factors) - starts[2])


def test_where_phases_began_by_the_time_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed and resumed at each update; the second phase begins where its share of the updates was far from over."""
    kill_at(monkeypatch, *range(1, 10))
    config, plan, starts, seen = make_config(tmp_path, save_checkpoint_steps=1), RunPlan(200, 10.0), [0], []
    for _ in range(9):
        step, seconds = Step(), itertools.count(0.4, 0.4)
        with RunFolder(tmp_path, config) as folder:
            trainer = Trainer(step, three_phases(), plan, folder, make_identity())
            trainer.progress.clock = lambda seconds=seconds: next(seconds)
            with pytest.raises(KeyboardInterrupt):
                trainer.fit()
        assert trainer.phases.starts[: len(starts)] == starts
        starts, seen = trainer.phases.starts, seen + step.seen
    assert len(starts) == 2 and 0 < starts[1] < 8
    small = [100 * epoch + number for epoch in range(4) for number in range(5)][: 2 * starts[1]]
    epoch, used = divmod(len(small), 5)
    large = [100 * epoch + number for epoch in range(9) for number in range(2)]
    assert seen == small + large[2 * epoch + -(-used // 2) :][: 9 - starts[1]]


def test_a_dry_run_tries_every_phase(tmp_path: Path) -> None:
    config, step = make_config(tmp_path / "run"), Step()
    folder = RunFolder(tmp_path / "run", config)
    said = dry_run(Trainer(step, three_phases(), RunPlan(20), folder, make_identity()))
    for part in ("one update of phase 1 with 4 x 8 takes 0.", "of phase 2 with 4 x 8", "of phase 3 with 4 x 12"):
        assert part in said
    assert step.seen == [0] * 2 * (2 + 1 + 3)


def test_curves_show_where_phases_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draw_curves: Any) -> None:
    """The records have evaluations or none, and missing numbers."""
    monkeypatch.setattr(RunLog, "_draw", draw_curves)
    lines: list[float] = []
    monkeypatch.setattr("matplotlib.axes.Axes.axvline", lambda _, step, **style: lines.append(step))
    log = RunLog(tmp_path, ("loss",), 9, 0, {"eval_f1": {"baseline": 0.5}})
    record = dict.fromkeys(("epoch", "learning_rate", "loss_scale", "grad_norm", "loss"), 1.0)
    record |= dict.fromkeys(("examples_per_s", "tokens_per_s", "mfu", "eta_s")) | {"skipped_steps": 0}
    for step, phase in ((1, 1), (4, 1), (6, 2), (7, 2), (9, 3)):
        log.write({"step": step, "phase": phase, **record, **({"eval_f1": None, "loss": None} if step == 6 else {})})
    log.write({"step": 9, "phase": 3, **record, "eval_f1": 0.75})
    log.draw_curves()
    log.close()
    assert lines == [4, 7] * 2  # in the panels of loss and f1
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


# --- as pre-training configures them ---


class Examples(NumberedRows):
    """Stands in for PretrainingData."""

    def __init__(self, data_dir: str, rows: int, rows_at_once: int, **entries: Any) -> None:
        super().__init__(rows, rows_at_once)
        self.data_dir, self.identity = data_dir, {"rows": rows} | entries
        self.manifest = {"max_seq_length": 16, "files": {"rows.mindrecord": f"sha256 of {data_dir}"}} | entries
        self.fitted: list[Any] = []

    def check_vocabulary(self, others: dict[str, Any], owner: str) -> None:
        if self.manifest.get("vocab_sha256") != others.get("vocab_sha256"):
            raise DataError(f"{self.data_dir} and {owner} differ")

    def check_fits(self, architecture: Any) -> None:
        self.fitted.append(architecture)


def phases_of(tmp_path: Path, *datasets: Examples, **second: Any) -> Phases:
    text = ", ".join(f"{key}: {value}" for key, value in {"share": 0.5, **second}.items())
    config = config_of(tmp_path, tmp_path / "run", phases=f"[{{share: 0.5}}, {{{text}}}]", accumulation_steps=2)
    return plan_phases(config, datasets, PRESETS["albert_tiny"])


def test_data_whose_pairs_mean_something_else_is_refused() -> None:
    def made(directory: str, **settings: bool) -> PretrainingData:
        manifest = {"vocab_file": "vocab.txt", "vocab_sha256": "1"} | ({"settings": settings} if settings else {})
        return PretrainingData(SimpleNamespace(manifest=manifest, rows_at_once=1, batches_per_epoch=1), directory)

    order, following = made("a", random_next_sentence=False), made("b", random_next_sentence=True)
    with pytest.raises(DataError, match=r"a was made with settings\.random_next_sentence False, b with True"):
        order.check_vocabulary(following.manifest, "b")
    for others in (order, made("google's")):
        order.check_vocabulary(others.manifest, others.data_dir)


def test_a_phase_takes_what_it_does_not_name_from_the_rest_of_the_configuration(tmp_path: Path) -> None:
    data = [Examples("a", 64, 8), Examples("b", 64, 4, max_seq_length=32)]
    phases = phases_of(tmp_path, *data, data_dir=tmp_path / "b", batch_size=4, learning_rate=0.0005)
    first, second = phases.all
    assert (first.accumulation_steps, first.share, first.rate_factor) == (2, 0.5, 1.0)
    assert (second.accumulation_steps, second.share, second.rate_factor) == (2, 0.5, 0.5)
    assert first.source != second.source
    again, same = phases_of(tmp_path, data[0], data[0], data_dir=tmp_path / "train/rows.mindrecord").all
    assert again.source == same.source == first.source
    assert second.description == (
        f"0.5 of the run, {tmp_path}/b, length 32, batch 4 x 2, learning_rate 0.0005, sop_loss_weight 1"
    )
    assert data[1].fitted == [PRESETS["albert_tiny"]]


def test_the_description_says_how_tokens_are_masked(tmp_path: Path) -> None:
    config = config_of(tmp_path, tmp_path / "run", phases="[{masked_lm_prob: 0.3}]")
    manifest = {"max_seq_length": 16, "settings": {"masked_lm_prob": 0.15, "ngram": 3, "short_seq_prob": 0.1}}
    assert "learning_rate 0.001, masked_lm_prob 0.3, ngram 3, sop" in describe(config.all_phases()[0], manifest)


@pytest.mark.parametrize(
    ("rows_per_update", "words"), [(0, "128: lower batch_size"), (512, "512: lower global_batch_size")]
)
def test_data_of_less_than_an_update_names_the_key_to_lower(rows_per_update: int, words: str) -> None:
    loading = Loading(128, rows_per_update=rows_per_update)
    dataset = SimpleNamespace(manifest={}, rows_at_once=128, batches_per_epoch=0, loading=loading)
    with pytest.raises(ConfigError, match=f"data has fewer rows than one batch of {words}"):
        PretrainingData(dataset, "data")


def test_data_that_does_not_suit_a_phase_is_refused(tmp_path: Path) -> None:
    first = Examples("a", 64, 8, vocab_sha256="x")
    with pytest.raises(DataError, match="b and a differ"):
        phases_of(tmp_path, first, Examples("b", 64, 8, vocab_sha256="y"))
    with pytest.raises(ConfigError, match=r"a batch of 134,217,728 tokens would take"):
        phases_of(tmp_path, first, Examples("b", 64, 8, vocab_sha256="x", max_seq_length=2**24))


def test_a_run_knows_the_data_of_all_phases_again() -> None:
    same, other = SimpleNamespace(identity={"rows": 5, "task": "t"}), SimpleNamespace(identity={"rows": 6, "task": "t"})
    assert identity_of([same]) == identity_of([same, same]) == same.identity
    assert identity_of([same, other, same]) == {"rows": 5, "task": "t", "rows of phase 2": 6}
