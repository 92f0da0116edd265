"""Transfer to tasks: starts, splits, the choice of the rate, and what a network is compared with."""

import io
import json
import shutil
import tarfile
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from benchmarks import transfer
from benchmarks.bag_of_words import classification_accuracy, sliding_window_accuracy
from benchmarks.transfer import Estimate, Start, Transfer, TransferConfig, at_rate, find_starts, table
from benchmarks.transfer_tasks import TransferTask, join_squad, split_by_question, unpack_race
from model_utils.errors import ConfigError, DataError
from src.create_finetune_data import Example
from src.tasks.classification import ClassifierTask
from src.tasks.classification_examples import ClassifierConfig
from src.tasks.race_data import RaceQuestion
from tests.helpers.trained_folders import make_folder


def examples(*rows: tuple[str, str, str]) -> list[Example]:
    return [Example(a, b, label, Path("x.tsv"), line) for line, (a, b, label) in enumerate(rows, 1)]


def test_a_bag_of_words_learns_which_words_belong_to_a_label() -> None:
    train = examples(("a good film", "", "1"), ("a bad film", "", "0"), ("good", "", "1"), ("bad play", "", "0"))
    assert classification_accuracy(train, train, examples(("very good", "", "1"), ("so bad", "", "0"))) == 1.0


def test_only_overlap_tells_whether_two_texts_are_the_same() -> None:
    words = [f"w{number}" for number in range(40)]
    rows = [
        (word, word if even else words[place - 1], str(even)) for place, word in enumerate(words) for even in (0, 1)
    ]
    train, evaluated = examples(*rows[:60]), examples(*rows[60:])
    assert classification_accuracy(train, train, evaluated, overlap=True) == 1.0
    assert classification_accuracy(train, train, evaluated) < 0.7


def test_the_sliding_window_finds_the_words_that_stand_together() -> None:
    article = "Tom has a red kite . Ann found an old coin in the garden . The kite is new ."
    options = ("a red kite", "an old coin", "the new moon", "tall trees")
    question = RaceQuestion("middle/1/0", 0, article, "What did Ann find in the garden ?", options, 1)
    assert sliding_window_accuracy([question]) == 1.0


def test_no_question_is_on_both_sides_of_the_split(tmp_path: Path) -> None:
    rows = [f"{number}\tquestion {number // 2}\tsentence {number}\tentailment" for number in range(200)]
    (tmp_path / "dev.tsv").write_text("\n".join(["index\tquestion\tsentence\tlabel", *rows]) + "\n")
    split_by_question(tmp_path / "dev.tsv", tmp_path / "out")
    parts = {name: (tmp_path / "out" / f"{name}.tsv").read_text().splitlines() for name in ("train", "dev")}
    assert parts["train"][0] == parts["dev"][0] == "index\tquestion\tsentence\tlabel"
    assert sorted(parts["train"][1:] + parts["dev"][1:]) == sorted(rows)
    train, dev = ({row.split("\t")[1] for row in part[1:]} for part in parts.values())
    assert not train & dev and 20 < 2 * len(dev) < 60


def test_files_of_questions_are_joined(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"version": "1.1", "data": [{"title": name}]}))
    join_squad([tmp_path / "a.json", tmp_path / "b.json"], tmp_path / "new" / "both.json")
    assert [each["title"] for each in json.loads((tmp_path / "new" / "both.json").read_text())["data"]] == ["a", "b"]


def test_the_easier_half_of_race_is_unpacked(tmp_path: Path) -> None:
    files = {"RACE/dev/middle/1.txt": b"one", "RACE/dev/high/2.txt": b"two", "RACE/train/middle/3.txt": b"three"}
    write_archive(tmp_path / "race.tar.gz", files)
    unpack_race(tmp_path / "race.tar.gz", tmp_path / "RACE")
    unpacked = {file.relative_to(tmp_path).as_posix(): file.read_bytes() for file in (tmp_path / "RACE").rglob("*.txt")}
    assert unpacked == {name: content for name, content in files.items() if "middle" in name}
    for name in ("RACE/../../middle/1.txt", f"RACE/{tmp_path}/middle/1.txt"):
        write_archive(tmp_path / "bad.tar.gz", {name: b"one"})
        with pytest.raises(DataError, match="which lies outside of it"):
            unpack_race(tmp_path / "bad.tar.gz", tmp_path / "bad")
        assert not (tmp_path / "bad").exists() and not (tmp_path / "middle").exists()


def write_archive(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def test_limits_of_the_command_and_of_the_task() -> None:
    task = TransferTask(
        "run_classifier", ClassifierTask, ClassifierConfig(max_train_samples=50, epoch_num=2), "accuracy"
    )
    assert task.scaled(0, 0) == task
    assert task.scaled(60, 0).config.max_train_samples == 50
    scaled = task.scaled(40, 3).config
    assert (scaled.max_train_samples, scaled.epoch_num) == (40, 3)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"tasks": "sst-2,colla"}, "tasks names colla, allowed are sst-2"),
        ({"warm": "folder"}, "warm is folder, allowed is NAME=FOLDER"),
        ({"warm": "a=x,a=y"}, "warm has the names a, a"),
        ({"rates": "1e-4,fast"}, "rates holds fast: .*learning_rate is 'fast'"),
    ],
)
def test_wrong_settings_are_sentences(keys: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        TransferConfig(**keys)


def test_the_rate_is_chosen_on_the_development_set_and_the_seeds_run_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    dev = {"1e-4": 0.5, "3e-4": 0.7, "1e-3": 0.6}
    asked = []

    def run(self: Transfer, name: str, start: Start, rate: str, seed: int) -> dict[str, float]:
        asked.append((rate, seed))
        figures = {"dev": dev[rate], "figure": 0.1 * (seed % 10), "baseline": 0.4}
        return figures | {"seconds": 1.0, "machine": {}}

    monkeypatch.setattr(Transfer, "run", run)
    work = object.__new__(Transfer)
    work.config, work.estimate = TransferConfig(seeds=3), Estimate(1e9)
    work.estimate.plan("t", "warm", 1e9, 5)
    start = Start("warm", None, None, {})
    task = TransferTask("run_classifier", ClassifierTask, ClassifierConfig(seed=11), "accuracy")
    work.tasks = {"t": task}
    result = work.compare("t", start)
    assert asked == [("1e-4", 11), ("3e-4", 11), ("1e-3", 11), ("3e-4", 12), ("3e-4", 13)]
    assert (result["rate"], result["dev_by_rate"]) == ("3e-4", dev)
    assert (result["mean"], result["standard_deviation"]) == pytest.approx((0.2, 0.1))
    results = {"t": {"figure": "dev accuracy", "without_network": {"bag of words": 0.25}, "starts": {"warm": result}}}
    assert table(results, ["warm"]).splitlines()[-1] == (
        "| t | dev accuracy | 0.400 | bag of words 0.250 | 0.200 ± 0.100 (3e-4) |"
    )


def test_so_many_fine_tunings_run_at_a_time_as_jobs_says(monkeypatch: pytest.MonkeyPatch) -> None:
    both, running, most = Barrier(2, timeout=60), [], []

    def run(self: Transfer, name: str, start: Start, rate: str, seed: int) -> dict[str, float]:
        running.append(seed)
        both.wait()  # nobody goes on until a second one has begun
        most.append(len(running))
        both.wait()
        running.remove(seed)
        return {"seconds": 10.0, "rate": rate, "seed": seed}

    monkeypatch.setattr(Transfer, "run", run)
    work = object.__new__(Transfer)
    work.config, work.estimate = TransferConfig(jobs=2), Estimate(1e9)
    work.estimate.plan("t", "warm", 0.0, 4)
    trials = [("1e-4", 1), ("1e-4", 2), ("3e-4", 1), ("3e-4", 2)]
    results = work.run_all("t", Start("warm", None, None, {}), trials)
    assert [(each["rate"], each["seed"]) for each in results] == trials
    assert most == [2] * 4 and work.estimate.measured == 20.0  # seconds that went by


def test_one_rate_leaves_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Barrier(2, timeout=60)

    def run(self: Transfer, name: str, start: Start, rate: str, seed: int) -> dict[str, Any]:
        both.wait()  # the first seed runs beside the second one
        return {"dev": 0.5, "figure": float(seed), "baseline": 0.4, "seconds": 1.0, "machine": {}}

    monkeypatch.setattr(Transfer, "run", run)
    work = object.__new__(Transfer)
    work.config, work.estimate = TransferConfig(rates="3e-4", seeds=4, jobs=2), Estimate(1e9)
    work.estimate.plan("t", "warm", 1e9, 4)
    work.tasks = {"t": TransferTask("run_classifier", ClassifierTask, ClassifierConfig(seed=11), "accuracy")}
    result = work.compare("t", Start("warm", None, None, {}))
    assert (result["dev_by_rate"], result["figures"]) == ({"3e-4": 0.5}, [11.0, 12.0, 13.0, 14.0])


def test_an_estimate_follows_what_is_measured() -> None:
    estimate = Estimate(1e9)
    estimate.plan("a", "warm", 30e9, 3)  # 40 s and 60 s of operations at half of the speed
    estimate.plan("b", "warm", 30e9, 1)
    assert estimate.rest() == "4 runs, about 0:06:40"
    estimate.done("a", "warm", 50.0)
    assert (estimate.rest("a"), estimate.rest()) == ("2 runs, about 0:01:40", "3 runs, about 0:02:30")
    both = Estimate(1e9, at_once=2)
    both.plan("a", "warm", 30e9, 3)
    assert both.rest() == "3 runs, about 0:02:30"


def test_a_cold_start_has_the_architecture_and_the_vocabulary_of_the_warm_one(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run", "fill_mask")
    starts = find_starts((f"one={folder}", f"two={folder}"))
    assert [start.name for start in starts] == ["cold-one", "one", "two"]
    assert [start.name for start in find_starts((f"one={folder}",), with_cold=False)] == ["one"]
    cased = shutil.copytree(folder, tmp_path / "cased")
    settings = json.loads((cased / "tokenizer_config.json").read_text())
    (cased / "tokenizer_config.json").write_text(
        json.dumps({key: value for key, value in settings.items() if key != "checksum"} | {"do_lower_case": False})
    )
    names = [start.name for start in find_starts((f"one={folder}", f"cased={cased}"))]
    assert names == ["cold-one", "one", "cold-cased", "cased"]
    cold, warm = (at_rate(ClassifierConfig(**start.keys), "1e-3") for start in starts[:2])
    size = starts[0].tokenizer.vocab_size
    architectures = [config.albert_config(size, "float32", config.load_checkpoint_path) for config in (cold, warm)]
    assert architectures[0] == architectures[1] == starts[1].architecture
    assert cold.load_checkpoint_path == "" and Path(warm.load_checkpoint_path).parent == folder
    assert cold.optimizer_cfg.settings()["learning_rate"] == 1e-3


def test_every_fine_tuning_has_the_compute_type_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = []

    def run_command(module: str, config: ClassifierConfig, log: Path) -> None:
        configs.append(config)
        folder = Path(config.save_finetune_checkpoint_path)
        folder.mkdir()
        ended = {"accuracy": 0.7, "baselines": {"accuracy": 0.5}}
        (folder / "eval_results.json").write_text(json.dumps(ended))

    monkeypatch.setattr(transfer, "run_command", run_command)
    work = object.__new__(Transfer)
    work.output = tmp_path
    work.tasks = {"t": TransferTask("run_classifier", ClassifierTask, ClassifierConfig(), "accuracy")}
    work.machine, work.estimate = {}, Estimate(1e9)
    work.estimate.plan("t", "cold", 1e9, 9)
    for compute_type in ("", "bfloat16", ""):
        work.config = TransferConfig(rates="1e-4,1e-3", seeds=2, compute_type=compute_type)
        result = work.compare("t", Start("cold", None, None, {}))
        assert (result["figures"], result["compute_type"]) == ([0.7, 0.7], compute_type)
    assert [config.compute_type for config in configs] == [""] * 3 + ["bfloat16"] * 3  # one is not taken for another
