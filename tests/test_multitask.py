"""Several tasks on one backbone: draws, updates, resumption, a model folder for each task, and what is refused."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor

import run_classifier
import run_multitask
import run_ner
from model_utils.errors import CheckpointError, ConfigError
from model_utils.schema import load_config
from src.albert_for_finetune import AlbertForRegression, AlbertForSequenceClassification
from src.albert_networks import JointNetwork, TrainingNetwork
from src.checkpoints.checkpoint_files import find_checkpoint
from src.data.mixed_batches import TASK, MixedDataset
from src.finetune_eval_model import SequenceClassificationScores
from src.finetuning.multitask import check_task_folders
from src.model_folder import ModelFolder
from src.tasks.classification_examples import ClassifierConfig
from src.tasks.multitask_config import MultitaskConfig
from src.tasks.token_classification import NerConfig
from src.training.optimizer import build_optimizer
from src.training.run_plan import LossScale
from src.training.train_step import TrainStep
from tests.helpers.classifier_run import GOOD, MODEL, config_of, read, read_rows, write_classifier_data, write_table
from tests.helpers.finetune_arguments import arguments
from tests.helpers.kills import kill_at
from tests.helpers.tiny_model import OPTIMIZER_SETTINGS, TINY, batch

DROPOUT = {"albert_cfg.hidden_dropout_prob": 0.1}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with classes of texts, and in `points` scores and in `words` tags of others."""
    folder = write_classifier_data(tmp_path_factory.mktemp("data"))
    for name in ("points", "words"):
        (folder / name).mkdir()
    for split, rows in (("train", 90), ("dev", 40)):
        write_table(folder / f"points/{split}.tsv", rows, rows)
        text = (folder / f"points/{split}.tsv").read_text()
        (folder / f"points/{split}.tsv").write_text(text.replace("\tgood", "\t1").replace("\tbad", "\t0"))
        write_table(folder / "words.tsv", rows, rows + 1)
        sentences = [line.split("\t")[0].split() for line in (folder / "words.tsv").read_text().splitlines()[1:]]
        tagged = [[f"{word} {'B-GOOD' if word in GOOD else 'O'}" for word in sentence] for sentence in sentences]
        (folder / f"words/{split}.txt").write_text("\n\n".join(map("\n".join, tagged)) + "\n")
    return folder


def tasks_of(data: Path) -> dict[str, dict[str, Any]]:
    return {
        "films": {"data_dir": str(data), "label_smoothing": 0.1},
        "points": {"data_dir": str(data / "points"), "num_class": 1},
        "words": {"command": "ner", "data_dir": str(data / "words"), "max_seq_length": 24},
    }


def words_of(data: Path, run: Path, tasks: dict[str, Any] | None = None, **changes: Any) -> list[str]:
    settings = {
        "tasks": json.dumps(tasks or tasks_of(data)),
        "vocab_file_path": data / "vocab.txt",
        "feature_dir": data / "features",
        "train_batch_size": 16,
        "max_seq_length": 32,
        "optimizer_cfg.AdamWeightDecay.learning_rate": 0.01,
        "epoch_num": 10,
        "save_finetune_checkpoint_path": run,
    }
    return arguments(MODEL, settings | DROPOUT | changes)


def joint_config(*given: Any, **changes: Any) -> MultitaskConfig:
    return load_config(MultitaskConfig, words_of(*given, **changes))


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    run_multitask.main(joint_config(data, folder))
    return folder


# --- which batch is when ---


def numbered(rows: int, per_epoch: int) -> SimpleNamespace:
    """A data set whose batches are (epoch, index)."""

    def batches(epoch: int, start: int = 0) -> Any:
        return ({"at": (epoch, index)} for index in range(start, per_epoch))

    def widths(epoch: int) -> np.ndarray:
        return np.full(per_epoch, rows)

    return SimpleNamespace(
        num_rows=rows, batches_per_epoch=per_epoch, rows_at_once=4, most_tokens=rows, batches=batches, widths=widths
    )


@pytest.mark.parametrize(("alpha", "shares"), [(0.0, [1 / 3] * 3), (0.5, [1 / 13, 2 / 13, 10 / 13]), (1, None)])
def test_shares_of_updates_follow_alpha(alpha: float, shares: list[float] | None) -> None:
    rows = [100, 400, 10_000]
    shares = shares or [size / sum(rows) for size in rows]
    mixed = MixedDataset([numbered(size, 10_000) for size in rows], alpha, seed=5)
    np.testing.assert_allclose(mixed.shares, shares)
    drawn = np.bincount(mixed.tasks(0), minlength=3) / mixed.batches_per_epoch
    np.testing.assert_allclose(drawn, shares, atol=0.01)


def test_batches_are_a_function_of_seed_and_position() -> None:
    """Those of an update are of one data set, and each data set is read in its own order, epoch after epoch."""
    mixed, again = (MixedDataset([numbered(50, 3), numbered(200, 8)], 0.5, 11, 2) for _ in range(2))
    assert mixed.batches_per_epoch == 10
    order = [batch for epoch in range(12) for batch in mixed.batches(epoch)]
    for position in (117, 59, 3):
        epoch, start = divmod(position, 10)
        assert list(again.batches(epoch, start)) == order[position : 10 * epoch + 10]
    tasks = np.array([batch[TASK] for batch in order]).reshape(-1, 2)
    assert (tasks[:, 0] == tasks[:, 1]).all() and set(tasks.ravel()) == {0, 1}
    for task, per_epoch in ((0, 3), (1, 8)):
        found = [batch["at"] for batch in order if batch[TASK] == task]
        assert found == [divmod(index, per_epoch) for index in range(len(found))]
    assert MixedDataset(mixed.datasets, 0.5, 11, 16).batches_per_epoch == 16  # an epoch has an update
    assert list(MixedDataset(mixed.datasets, 0.5, 8, 2).tasks(0)) != list(mixed.tasks(0))
    shares = mixed.width_shares()
    assert [order[start][TASK] for start, _ in shares] == [0, 1] and sum(share for _, share in shares) == 1


# --- updates ---


def networks(seed: int = 3) -> dict[str, TrainingNetwork]:
    one_layer = TINY.replace(num_hidden_layers=1)
    return {
        "classes": AlbertForSequenceClassification(SequenceClassificationScores(one_layer, 3), seed),
        "scores": AlbertForRegression(SequenceClassificationScores(one_layer, 1), seed),
    }


def batches() -> list[dict[str, np.ndarray]]:
    columns = batch()
    return [
        columns | {"label_ids": np.array([0, 2, 1], np.int32), TASK: 0},
        columns | {"label_ids": np.array([0.5, 2.0, 1.0], np.float32), TASK: 1},
    ]


def step_of(network: TrainingNetwork, **changes: Any) -> TrainStep:
    settings = OPTIMIZER_SETTINGS.replace(weight_decay=0.1, schedule="constant", **changes)
    weights = network.weights_to_train()
    owners = [network.owner_of(weight) for weight in weights] if isinstance(network, JointNetwork) else []
    return TrainStep(network, build_optimizer(weights, settings, 100, owners), LossScale())


def values_of(step: TrainStep) -> dict[str, np.ndarray]:
    return {name: parameter.asnumpy().copy() for name, parameter in step.parameters_dict().items()}


def test_an_update_is_that_of_the_task_alone_and_leaves_other_heads_as_they_are() -> None:
    """Weights, moments and all; in spite of weight decay, and of moments from earlier updates."""
    joint = JointNetwork(networks())
    step = step_of(joint)
    for columns in batches():
        step.train([columns])
    for index, (name, network) in enumerate(networks().items()):
        before = values_of(step)
        alone = step_of(network)
        head = f"heads.{name}."
        for key, parameter in alone.parameters_dict().items():
            ms.ops.assign(parameter, ms.Tensor(before[key.replace("classifier.", f"{head}classifier.")]))
        outputs = step.train([batches()[index]])
        expected = alone.train([batches()[index]])
        assert float(outputs["loss"]) == float(outputs[f"{name}_loss"]) == float(expected["loss"])
        assert np.isnan(float(outputs["scores_loss" if name == "classes" else "classes_loss"]))
        after = values_of(step)
        trained = values_of(alone)
        for key in after:
            if "heads." in key and head not in key:
                np.testing.assert_array_equal(after[key], before[key], err_msg=key)
            elif not key.startswith("head_steps."):
                np.testing.assert_array_equal(after[key], trained[key.replace(head, "")], err_msg=key)
    assert [int(after[f"head_steps.{index}"]) for index in (0, 1)] == [2, 2]


@pytest.mark.parametrize("name", ["AdamWeightDecay", "Lamb", "Adam"])
def test_bias_correction_counts_the_updates_of_a_head(name: str) -> None:
    """A first update with bias correction has the size of the rate, however many updates other heads had before."""
    settings = OPTIMIZER_SETTINGS.replace(
        name=name, schedule="constant", bias_correction=name != "Adam", decay_filter=("head",), eps=1e-9
    )
    heads = [Parameter(Tensor([1.0, -2.0], ms.float32), name=f"head_{task}") for task in range(2)]
    optimizer = build_optimizer(heads, settings, 100, owners=[0, 1])
    gradients = (Tensor([0.5, 3.0], ms.float32),) * 2
    for update, task in enumerate([0, 0, 0, 0, 1], 1):
        before = heads[1].asnumpy().copy()
        optimizer(gradients, Tensor(True), Tensor(update, ms.int32), Tensor(0.0), Tensor(1.0), task)
    np.testing.assert_allclose(np.abs(heads[1].asnumpy() - before), settings.learning_rate, rtol=0.02)


# --- runs ---


def test_all_tasks_are_learnt_and_their_mean_chooses_one_checkpoint(run: Path) -> None:
    joint = read(run / "eval_results.json")
    results = {name: read(run / name / "eval_results.json") for name in ("films", "points", "words")}
    metrics = {"films": "accuracy", "points": "spearman_correlation", "words": "f1"}
    assert joint["mean"] == pytest.approx(np.mean([results[name][metric] for name, metric in metrics.items()]))
    for name, metric in metrics.items():
        assert results[name][metric] == joint[f"{name}_{metric}"] > 0.8
    log = [json.loads(line) for line in (run / "train_log.jsonl").read_text().splitlines()]
    evaluated = {record["step"]: record["eval_mean"] for record in log if "eval_mean" in record}
    best = max(evaluated, key=lambda step: (evaluated[step], -step))
    assert best == joint["step"] == read(run / "best_checkpoint.json")["step"]
    assert {result["step"] for result in results.values()} == {best}
    backbones = [find_checkpoint(run / name).values["albert.pooler.weight"] for name in metrics]
    assert all(np.array_equal(backbone, backbones[0]) for backbone in backbones)


def test_the_folder_of_each_task_is_a_model_of_its_own(data: Path, run: Path, tmp_path: Path) -> None:
    answers = (
        ModelFolder.load(run / "films")
        .predictor()
        .predict([{"text_a": row["text_a"]} for row in read_rows(data / "dev.tsv")])
    )
    predicted = [row["prediction"] for row in read_rows(run / "films/predictions_dev.tsv")]
    assert [answer["label"] for answer in answers] == predicted
    assert read(run / "films/eval_results.json")["accuracy"] == np.mean(
        [row["label"] == label for row, label in zip(read_rows(data / "dev.tsv"), predicted, strict=True)]
    )
    moved = shutil.copytree(run / "points", tmp_path / "moved")
    scores = (
        ModelFolder.load(moved)
        .predictor()
        .predict([{"text_a": row["text_a"]} for row in read_rows(data / "points/dev.tsv")])
    )
    gold = [float(row["prediction"]) for row in read_rows(run / "points/predictions_dev.tsv")]
    assert [answer["score"] for answer in scores] == pytest.approx(gold, abs=1e-5)
    with pytest.raises(CheckpointError, match="has the heads of several tasks: give the folder of one of them"):
        ModelFolder.load(run).network()


@pytest.mark.parametrize("task", ["films", "words"])
def test_the_command_of_a_task_evaluates_its_folder(data: Path, run: Path, tmp_path: Path, task: str) -> None:
    """With the figures of the training."""
    keys = tasks_of(data)[task]
    kind, program = (NerConfig, run_ner) if keys.pop("command", "") else (ClassifierConfig, run_classifier)
    keys.pop("label_smoothing", None)
    where = {"do_train": False, "load_finetune_checkpoint_path": run / task, "output_path": tmp_path}
    settings = {"max_seq_length": 32, "feature_dir": data / "features"} | keys | where
    program.main(load_config(kind, arguments(MODEL, settings)))
    trained = read(run / task / "eval_results.json") | {"baselines": {}}  # which need a training
    assert read(tmp_path / "eval_results.json") == trained


def test_the_backbone_of_a_run_starts_another_training(data: Path, run: Path, tmp_path: Path) -> None:
    run_classifier.main(
        config_of(data, tmp_path / "next", load_pretrain_checkpoint_path=run, vocab_file_path="", train_steps=1)
    )
    assert read(tmp_path / "next/eval_results.json")["accuracy"] > 0.4


def test_a_killed_run_loses_nothing_and_is_not_resumed_with_other_tasks(
    data: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bit for bit; also from another working folder."""
    monkeypatch.chdir(data.parent)
    killed = words_of(Path(data.name), tmp_path / "killed", save_checkpoint_steps=3)
    kill_at(monkeypatch, 35)
    with pytest.raises(KeyboardInterrupt):
        run_multitask.main(load_config(MultitaskConfig, killed))
    assert "resuming" not in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    for changes, found in (
        ({"alpha": 1}, "alpha is 0.5 there and 1.0 here"),
        ({"tasks": {**tasks_of(data), "words": {"data_dir": str(data)}}}, "configuration: tasks.words"),
        ({"tasks": dict(reversed(tasks_of(data).items()))}, "tasks is"),
    ):
        with pytest.raises(ConfigError, match=found):
            run_multitask.main(joint_config(data, tmp_path / "killed", **changes))
    run_multitask.main(joint_config(data, tmp_path / "killed", save_checkpoint_steps=3))
    assert "resuming after step 33" in capsys.readouterr().out
    assert read(tmp_path / "killed/eval_results.json") == read(run / "eval_results.json")
    for name in ("", "films", "points", "words"):
        whole, resumed = (find_checkpoint(folder / name).values for folder in (run, tmp_path / "killed"))
        np.testing.assert_equal(resumed, whole)
    run_multitask.main(joint_config(data, tmp_path / "killed"))
    assert "already finished: nothing to train" in capsys.readouterr().out
    assert read(tmp_path / "killed/eval_results.json") == read(run / "eval_results.json")


def test_seeds_are_summarised_and_a_dry_run_keeps_features_alone(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = {name: keys for name, keys in tasks_of(data).items() if name != "points"}
    changes = {"tasks": tasks, "train_steps": 4, "epoch_num": 3, "accumulation_steps": 2, "num_seeds": 2, "seed": 3}
    run_multitask.main(joint_config(data, tmp_path / "run", dry_run=True, **changes))
    assert "dry run: one update with" in capsys.readouterr().out and not (tmp_path / "run").exists()
    run_multitask.main(joint_config(data, tmp_path / "run", **changes))
    results = read(tmp_path / "run/eval_results.json")
    assert results["mean"]["mean"] == pytest.approx(np.mean([results["seeds"][seed]["mean"] for seed in "34"]))
    assert (tmp_path / "run/seed-4/words/task.json").exists()


# --- what is refused ---


REFUSED = [
    ({"films": {"data_dri": "x"}}, {}, r"^command line: tasks.films: data_dri is not a key; did you mean data_dir"),
    ({"films": {"num_class": -1}}, {}, r"tasks.films: num_class is -1, allowed is a whole number at least 0"),
    ({"films": {"vocab_file_path": "v"}}, {}, r"tasks.films.vocab_file_path is 'v', but all tasks share"),
    ({"films": {"batch_size": 8}}, {}, r"tasks.films.batch_size is 8, but all tasks share"),
    ({"films": {"command": "race"}}, {}, r"tasks.films.command is 'race', allowed is one of classifier, ner"),
    ({"films": {"command": ["ner"]}}, {}, r"tasks.films.command is \['ner'\], allowed is one of classifier, ner"),
    ({"wandb": {}}, {}, r"the name of a task in tasks is 'wandb', allowed is"),
    ({"beta": {}}, {}, r"tasks.beta holds 'beta' of decay_filter"),
    ({"a/b": {}}, {}, r"the name of a task in tasks is 'a/b', allowed is up to 64 letters"),
    ({"films": 3}, {}, r"tasks is .*, allowed is a mapping of names to mappings of keys"),
    ({}, {"do_train": False}, r"do_train is false, but run_multitask.py only trains"),
    ({}, {"search": "{epoch_num: [1, 2]}"}, r"search is .*, but it has no effect: several tasks are trained together"),
    ({}, {"teacher": "t"}, r"teacher is 't', but it has no effect: several tasks"),
    ({}, {"train_data_file_path": "t.mindrecord"}, r"train_data_file_path is .*: each task has its own"),
    ({}, {"alpha": 2}, r"alpha is '2', allowed is a number at least 0"),
]


@pytest.mark.parametrize(("tasks", "changes", "sentence"), REFUSED)
def test_wrong_keys_are_refused(
    data: Path, tmp_path: Path, tasks: dict[str, Any], changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        joint_config(data, tmp_path, tasks or tasks_of(data), **changes)


def test_a_task_that_needs_a_folder_is_refused_without_one(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        joint_config(data, tmp_path, {"films": {"task_name": "mrpc"}}).check_required()
    assert refused.value.key == "tasks.films.data_dir"


def test_two_tasks_of_one_name_and_none_at_all_are_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "twice.yaml").write_text("tasks:\n  films: {data_dir: a}\n  films: {data_dir: b}\n")
    with pytest.raises(ConfigError, match=r'twice.yaml is not yaml: line 3: found duplicate key "films"'):
        load_config(MultitaskConfig, ["--config_path", str(tmp_path / "twice.yaml")])
    with pytest.raises(ConfigError, match="name the tasks") as error:
        load_config(MultitaskConfig, ["--save_finetune_checkpoint_path", str(tmp_path)]).check_required()
    assert (error.value.key, error.value.value) == ("tasks", {})


@pytest.mark.parametrize("left", ["config.yaml", "albert-1.ckpt"])
def test_the_model_of_another_run_is_not_replaced(data: Path, tmp_path: Path, left: str) -> None:
    (tmp_path / "run/films").mkdir(parents=True)
    (tmp_path / "run/films" / left).write_text("")
    with pytest.raises(ConfigError, match=r"run/films holds another model"):
        check_task_folders(tmp_path / "run", joint_config(data, tmp_path / "run", tasks_of(data)))


def test_only_the_weights_of_a_field_learn_at_its_rate() -> None:
    names = ("crf.first.bias", "heads.a.crf.first.bias", "heads.crf.classifier.weight", "albert.crf.weight")
    parameters = [Parameter(Tensor(np.zeros(1, np.float32)), name=name) for name in names]
    assert build_optimizer(parameters, OPTIMIZER_SETTINGS, 10).is_crf == (True, True, False, False)


def test_a_task_without_enough_rows_fails_before_the_work(data: Path, tmp_path: Path) -> None:
    (tmp_path / "dev_only").mkdir()
    write_table(tmp_path / "dev_only/dev.tsv", 5, 1)
    for keys, found in (
        ({"data_dir": str(tmp_path / "dev_only"), "label_list": "bad,good"}, "films: there are no train examples"),
        ({"task_name": "mrpc", "data_dir": str(data)}, r"tasks.films: .*train.tsv"),
        (
            {"data_dir": str(data), "max_train_samples": 10},
            "tasks.films: 10 training rows, fewer than a batch of 16",
        ),
    ):
        changes = {"feature_dir": tmp_path / "features"} if "max_train_samples" not in keys else {}
        tasks = tasks_of(data) | {"films": keys}
        with pytest.raises(ConfigError, match=found) as caught:
            run_multitask.main(joint_config(data, tmp_path / "run", tasks, **changes))
        assert caught.value.key == "tasks.films"
        assert not (tmp_path / "features").exists()
    with pytest.raises(ConfigError, match="training several tasks does not support it") as caught:
        run_multitask.main(joint_config(data, tmp_path / "run", **{"albert_cfg.recompute": True}))
    assert (caught.value.key, caught.value.value) == ("albert_cfg.recompute", True)
