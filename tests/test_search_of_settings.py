"""Search over settings: which trials it makes, what it refuses, and how it goes on. No training."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from model_utils.errors import ConfigError, DataError, UserError
from model_utils.option_values import leaves_of
from model_utils.schema import load_config, write_config
from src.finetuning.runs import check_runs, config_of_run, trials_of
from src.finetuning.search import Result, run_trials
from src.tasks import TASKS
from src.tasks.classification_examples import ClassifierConfig
from src.tasks.finetune_config import FinetuneConfig
from tests.helpers.classifier_run import read, read_columns

RATE = "optimizer_cfg.AdamWeightDecay.learning_rate"
WORDS = ["--data_dir", "d", "--save_finetune_checkpoint_path", "r", "--load_pretrain_checkpoint_path", "w"]


def load(search: str, *words: str) -> ClassifierConfig:
    return load_config(ClassifierConfig, ["--config_path", "/dev/null", *WORDS, "--search", search, *words])


def test_every_combination_is_a_trial_that_differs_in_these_keys_alone() -> None:
    config = load(f"{{{RATE}: [1e-4, 3e-4], epoch_size: [2, 4, 8]}}")
    trials = trials_of(config)
    assert [trial.name for trial in trials] == [f"trial-{number:03}" for number in range(1, 7)]
    assert [tuple(trial.settings.values()) for trial in trials] == [
        (rate, epochs) for rate in (1e-4, 3e-4) for epochs in (2, 4, 8)
    ]
    alone = load_config(
        ClassifierConfig, ["--config_path", "/dev/null", *WORDS, f"--{RATE}", "3e-4", "--epoch_num", "2"]
    )
    assert trials[3].settings == {RATE: 3e-4, "epoch_num": 2}
    assert trials[3].config.to_dict() == alone.to_dict()


def test_sections_may_be_nested_in_yaml_and_a_configuration_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "search:\n  optimizer_cfg: {AdamWeightDecay: {learning_rate: [1e-4, 3e-4]}}\n  freeze: ['', encoder]\n"
    )
    config = load_config(ClassifierConfig, ["--config_path", str(file), *WORDS])
    assert config.search == {RATE: (1e-4, 3e-4), "freeze": ("", "encoder")}
    write_config(config, tmp_path / "written.yaml")
    assert load_config(ClassifierConfig, ["--config_path", str(tmp_path / "written.yaml")]) == config
    other = load_config(ClassifierConfig, ["--config_path", str(file), *WORDS, "--search", "{epoch_num: [2, 4]}"])
    assert other.search == {"epoch_num": (2, 4)}


def test_a_random_search_draws_distinct_combinations_by_the_seed() -> None:
    lists = f"{{{RATE}: {[i * 1e-5 for i in range(1, 40)]}, epoch_num: {list(range(1, 30))}}}"
    drawn = {
        seed: [trial.settings for trial in trials_of(load(lists, "--search_trials", "20", "--seed", seed))]
        for seed in "12"
    }
    assert drawn["1"] == [trial.settings for trial in trials_of(load(lists, "--search_trials", "20", "--seed", "1"))]
    assert drawn["1"] != drawn["2"]
    assert len({tuple(settings.values()) for settings in drawn["1"]}) == 20
    assert len(trials_of(load("{epoch_num: [1, 2, 3]}", "--search_trials", "3"))) == 3


def test_micro_batches_follow_from_the_global_batch_of_each_trial() -> None:
    config = load("{train_batch_size: [8, 16, 32]}", "--global_batch_size", "32", "--train_batch_size", "16")
    assert [trial.config.accumulation_steps for trial in trials_of(config)] == [4, 2, 1]


@pytest.mark.parametrize(
    "kind", {spec.config for spec in TASKS.values() if spec.config}, ids=lambda kind: kind.__name__
)
def test_what_can_be_searched_are_keys(kind: type[FinetuneConfig]) -> None:
    for name in kind.searchable:
        assert any(key.startswith(name) for key, _ in leaves_of(kind)), name


@pytest.mark.parametrize(
    ("search", "words", "key"),
    [
        ("{learning_rate: [1e-4]}", (), "learning_rate"),
        ("{epochs: [1]}", (), "epochs"),
        ("{1: [1]}", (), "1"),
        ("{data_dir: [a, b]}", (), "data_dir"),
        ("{max_seq_length: [64, 128]}", (), "max_seq_length"),
        ("{seed: [1, 2]}", (), "seed"),
        ("{save_finetune_checkpoint_path: [a, b]}", (), "save_finetune_checkpoint_path"),
        ("{search: [1]}", (), "search"),
        ("{num_seeds: [1, 2]}", (), "num_seeds"),
        ("{epoch_num: []}", (), "search"),
        ("{epoch_num: 2}", (), "search"),
        ("{epoch_num: {}}", (), "search"),
        ("[epoch_num]", (), "search"),
        ("epoch_num", (), "search"),
        ("{epoch_num: [2, 2]}", (), "search"),
        ("{epoch_num: [2], epoch_size: [4]}", (), "search"),
        ("{optimizer_cfg.Lamb.learning_rate: [1e-3, 1e-4]}", (), "search"),
        ("{epoch_num: [2, 2.5]}", (), "epoch_num"),
        ("{epoch_num: [2, two]}", (), "epoch_num"),
        ("{epoch_num: [2, true]}", (), "epoch_num"),
        ("{epoch_num: [2, 0]}", (), "epoch_num"),
        ("{epoch_num: [2, null]}", (), "epoch_num"),
        ("{epoch_num: [2, [4]]}", (), "epoch_num"),
        (f"{{{RATE}: [1e-4, .inf]}}", (), RATE),
        (f"{{{RATE}: [1e-4, -1]}}", (), RATE),
        ("{freeze: [all]}", (), "freeze"),
        (f"{{epoch_num: {list(range(1, 102))}}}", (), "search"),
        ("{epoch_num: [1, 2]}", ("--search_trials", "3"), "search_trials"),
        ("{epoch_num: [1, 2]}", ("--search_trials", "101"), "search_trials"),
        ("{epoch_num: [1, 2]}", ("--search_trials", "-1"), "search_trials"),
    ],
)
def test_a_search_that_cannot_be_is_refused(search: str, words: tuple[str, ...], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        trials_of(load(search, *words))
    assert caught.value.key.removeprefix("--") == key


@pytest.mark.parametrize(
    "words",
    [
        ["--search", "{epoch_num: ["],
        ["--search_trials", "2"],
        ["--search", "{epoch_num: [1]}", "--do_eval", "false"],
        ["--search", "{epoch_num: [1]}", "--do_train", "false", "--load_finetune_checkpoint_path", "w"],
        ["--search", "{epoch_num: [1]}", "--distribute", "true"],
        ["--search", "{freeze: [encoder]}", "--load_pretrain_checkpoint_path", ""],
        ["--search", "{temperature: [1, 2]}"],
        ["--search", "{epoch_num: [1, 2]}", "--train_steps", "5"],
        ["--search", "{label_smoothing: [0, 0.1]}", "--multi_label", "true"],
    ],
)
def test_a_search_is_refused_with_keys_that_contradict_it(words: list[str]) -> None:
    with pytest.raises(ConfigError):
        trials_of(load_config(ClassifierConfig, ["--config_path", "/dev/null", *WORDS, *words]))


def test_a_run_of_a_search_has_the_seed_of_its_folder() -> None:
    for seeds, name, seed in ((1, "trial-002", 7), (2, "trial-002/seed-8", 8)):
        trials = trials_of(load("{epoch_num: [1, 2]}", "--num_seeds", str(seeds), "--seed", "7"))
        config = config_of_run(Path("run") / name, Path("run"), trials)
        assert (config.epoch_num, config.seed, config.num_seeds) == (2, seed, 1)


def test_runs_of_another_type_in_the_folder_are_refused(tmp_path: Path) -> None:
    config = load("{epoch_num: [2, 4]}")
    trials = trials_of(config)
    single = trials[0].config
    write_config(trials[1].config, tmp_path / "search/trial-002/config.yaml")
    write_config(single, tmp_path / "single/config.yaml")
    check_runs(tmp_path / "search", config, trials)
    for folder, other, other_trials in (("search", single, []), ("single", config, trials)):
        with pytest.raises(ConfigError, match=r"holds a "):
            check_runs(tmp_path / folder, other, other_trials)
    seeds = config.replace(num_seeds=2)
    with pytest.raises(ConfigError, match="holds a single run"):
        check_runs(tmp_path / "search", seeds, trials_of(seeds))
    changed = load("{epoch_num: [2, 5]}")
    with pytest.raises(ConfigError, match=r"trial-002 .* epoch_num"):
        check_runs(tmp_path / "search", changed, trials_of(changed))


def run(folder: Path, metrics: dict[int, Any], ran: list[str], seeds: int = 1) -> Path:
    """Run a search whose trials reach these metrics by their epochs; `ran` gets the names of those that are trained."""

    def run_trial(trial: Any, earlier: Result | None) -> Result:
        if earlier:
            return earlier
        (folder / trial.name).mkdir(exist_ok=True)
        ran.append(trial.name)
        metric = metrics[trial.settings["epoch_num"]]
        return Result(trial=trial.name, settings=trial.settings, model=trial.name, metric=metric, seconds=1.5)

    trials = trials_of(load(f"{{epoch_num: {list(metrics)}}}"))
    return run_trials(folder, trials, "accuracy", seeds, run_trial)


def test_the_first_of_the_best_trials_is_chosen_and_one_that_diverged_is_not(tmp_path: Path) -> None:
    assert run(tmp_path, {1: None, 2: -0.5, 3: 0.25, 4: 0.25}, []) == tmp_path / "trial-003"
    stored = read(tmp_path / "search.json")
    assert stored["best"] == "trial-003" and [row["metric"] for row in stored["trials"]] == [None, -0.5, 0.25, 0.25]
    table = read_columns(tmp_path / "search.tsv")
    assert list(table) == ["trial", "epoch_num", "accuracy", "seconds"] and table["accuracy"][0] == "diverged"
    with pytest.raises(UserError):
        run(tmp_path, {5: None}, [])


def test_a_search_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    with pytest.raises(ValidationError):  # the second trial ends in the middle
        run(tmp_path, {1: 0.5, 2: "killed"}, [])
    assert read(tmp_path / "search.json")["best"] == "trial-001"
    again: list[str] = []
    assert run(tmp_path, {1: 0.5, 2: 0.7}, again) == tmp_path / "trial-002"
    assert again == ["trial-002"]
    more: list[str] = []
    run(tmp_path, {1: 0.5, 2: 0.7, 3: 0.6}, more)
    run(tmp_path, {1: 0.5, 2: 0.7, 3: 0.6}, more, seeds=2)
    assert more == ["trial-003", "trial-001", "trial-002", "trial-003"]
    stored = read(tmp_path / "search.json")
    with pytest.raises(ValidationError):  # nothing of the other trials is lost
        run(tmp_path, {1: 0.5, 4: "killed", 3: 0.6}, [], seeds=2)
    assert [row["trial"] for row in read(tmp_path / "search.json")["trials"]] == ["trial-001", "trial-003"]
    assert read(tmp_path / "search.json")["trials"][1] == stored["trials"][2]
    run(tmp_path, {1: 0.5, 2: 0.7, 3: 0.6}, [], seeds=2)
    text = (tmp_path / "search.json").read_text()
    (tmp_path / "search.json").write_text(text.replace("0.5", "0.9"))
    with pytest.raises(DataError):
        run(tmp_path, {1: 0.5, 2: 0.7}, [])
