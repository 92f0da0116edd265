"""Fine-tuning end to end on a small classifier: learns, chooses, resumes, evaluates, predicts; refused in time."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import run_classifier
from model_utils.errors import CheckpointError, ConfigError, DataError, UserError
from model_utils.files import write_json
from src.checkpoints.checkpoint_files import find_checkpoint, list_checkpoints
from src.finetuning import finetune as finetuning
from src.finetuning.finetune import Finetuning
from src.model_folder import ModelFolder, read_task_info
from src.training.network_outputs import OutputTable
from src.training.trainer import Trainer
from tests.conftest import ROOT
from tests.helpers.classifier_run import (
    classifier_arguments,
    config_of,
    evaluating,
    predicted_labels,
    read,
    read_columns,
    train_classifier,
    write_classifier_data,
    write_table,
)
from tests.helpers.folder_state import folder_state
from tests.helpers.trained_folders import make_folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with vocab.txt, train.tsv, dev.tsv and test.tsv."""
    return write_classifier_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_classifier(data, tmp_path_factory.mktemp("run") / "run")


def evaluated_steps(run: Path) -> dict[int, float]:
    """Accuracy by step, as the log has it."""
    log = [json.loads(line) for line in (run / "train_log.jsonl").read_text().splitlines()]
    return {record["step"]: record["eval_accuracy"] for record in log if "eval_accuracy" in record}


def test_it_learns_and_every_example_is_evaluated_and_predicted(run: Path, tmp_path: Path) -> None:
    results = read(run / "eval_results.json")
    dev, test = write_table(tmp_path / "dev.tsv", 45, 2), write_table(tmp_path / "test.tsv", 21, 3)
    predicted = predicted_labels(run / "predictions_dev.tsv")
    right = sum(one == other for one, other in zip(predicted, dev, strict=True))
    assert results["accuracy"] == pytest.approx(right / 45) and results["accuracy"] >= 0.95
    assert results["collapsed"] is False
    assert results["baselines"]["accuracy"] == max(dev.count("bad"), dev.count("good")) / 45
    assert results["baselines"].keys() <= results.keys()  # none of a test set without labels
    assert sum(a == b for a, b in zip(predicted_labels(run / "predictions_test.tsv"), test, strict=True)) >= 19


def test_the_best_checkpoint_is_the_one_that_is_evaluated(run: Path) -> None:
    evaluated = evaluated_steps(run)
    best, results = read(run / "best_checkpoint.json"), read(run / "eval_results.json")
    assert len(evaluated) == 10
    assert best["step"] == results["step"] == max(evaluated, key=lambda step: (evaluated[step], -step))
    assert results["accuracy"] == pytest.approx(evaluated[best["step"]])


@pytest.mark.parametrize("most", [45, 44])
def test_that_other_examples_are_chosen_than_in_training_is_told(
    data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], most: int
) -> None:
    """As by the configuration that is kept with the second of several seeds."""
    run_classifier.main(evaluating(data, run, max_eval_samples=most, seed=12346, output_path=tmp_path))
    assert ("max_eval_samples 44 and seed 12346" in capsys.readouterr().out) == (most < 45)


def test_predictions_say_which_row_what_is_right_and_how_sure_they_are(data: Path, run: Path) -> None:
    dev, test = (read_columns(run / f"predictions_{split}.tsv") for split in ("dev", "test"))
    assert list(dev) == ["index", "file", "line", "label", "prediction", "probability", "text_a"]
    assert list(test) == ["index", "file", "line", "prediction", "probability", "text_a"]
    rows = [f"{text}\t{label}" for text, label in zip(dev["text_a"], dev["label"], strict=True)]
    assert [(data / "dev.tsv").read_text().splitlines()[int(line) - 1] for line in dev["line"]] == rows
    assert set(dev["file"]) == {"dev.tsv"} and dev["index"] == [str(number) for number in range(45)]
    assert all(0.5 <= float(share) <= 1 for share in dev["probability"])


def test_weights_alone_give_the_same_results_and_stay_as_they_are(
    data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The vocabulary, the sizes and the labels lie beside them; other batches change nothing."""
    before = folder_state(run)
    changes = {
        "vocab_file_path": "",
        "output_path": tmp_path,
        "eval_batch_size": 7,
        "length_buckets": 1,
        "eval_data_shuffle": True,
        "assessment_method": "f1",
        "do_predict": True,
        "max_predict_samples": 5,
    }
    run_classifier.main(evaluating(data, run, **changes))
    assert " here, and " not in capsys.readouterr().out  # the settings are those of the training
    results = read(tmp_path / "eval_results.json")
    assert results["accuracy"] == read(run / "eval_results.json")["accuracy"]
    (remark,) = results["remarks"]
    assert "'good'" in remark
    here, there = (read_columns(folder / "predictions_dev.tsv") for folder in (tmp_path, run))
    sure, as_sure = (list(map(float, columns.pop("probability"))) for columns in (here, there))
    assert here == there
    assert sure == pytest.approx(as_sure, abs=1e-5)
    few, all_of_them = (read_columns(folder / "predictions_test.tsv") for folder in (tmp_path, run))
    assert len(few["line"]) == 5
    assert set(few["line"]) < set(all_of_them["line"])
    assert folder_state(run) == before


def test_settings_other_than_those_of_the_training_are_warned_of(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained = read_task_info(run)
    here = SimpleNamespace(task=SimpleNamespace(task_info=trained.model_copy(update={"max_seq_length": 24})))
    assert Finetuning.check_task(here, run) == trained
    known = SimpleNamespace(stated=lambda: {"task_name": "ax"})  # of the very weights that it is predicted with
    assert Finetuning.check_task(SimpleNamespace(task=SimpleNamespace(task_info=known)), run) == trained
    (warning,) = caplog.records
    assert warning.levelname == "WARNING"
    assert {"max_seq_length", "24,", "32"} < set(warning.getMessage().split())


def test_a_finished_run_is_not_trained_again(data: Path, run: Path, capsys: pytest.CaptureFixture) -> None:
    before = list_checkpoints(run)
    run_classifier.main(config_of(data, run, do_predict=True))
    assert "nothing to train" in capsys.readouterr().out and list_checkpoints(run) == before


def test_a_finished_run_is_not_evaluated_as_that_of_other_data(data: Path, run: Path, tmp_path: Path) -> None:
    here = shutil.copytree(data, tmp_path / "data")
    done = shutil.copytree(run, tmp_path / "run")
    config = (done / "config.yaml").read_text()
    (done / "config.yaml").write_text(config.replace(str(data), str(here)))
    run_classifier.main(config_of(here, done))
    before = (done / "eval_results.json").read_bytes()
    write_table(here / "train.tsv", 204, 1)
    with pytest.raises(CheckpointError, match="train rows was"):
        run_classifier.main(config_of(here, done))
    assert (done / "eval_results.json").read_bytes() == before


def test_runs_of_one_seed_and_of_several_do_not_share_a_folder(data: Path, run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="single run"):
        run_classifier.main(config_of(data, run, num_seeds=2, dry_run=True))
    shutil.copytree(run, tmp_path / "seed-12345")
    with pytest.raises(ConfigError, match="several seeds"):
        run_classifier.main(config_of(data, tmp_path, dry_run=True))
    with pytest.raises(ConfigError, match=r"seed-12345 .*epoch_num"):
        run_classifier.main(config_of(data, tmp_path, epoch_num=77, num_seeds=2, seed=12344))
    assert not (tmp_path / "seed-12344").exists()  # which would have come first


def test_a_signal_ends_an_evaluation_between_two_batches_and_the_same_texts_resume_the_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever their features lie and however they are batched; other development texts choose another checkpoint."""
    texts = shutil.copytree(data, tmp_path / "texts", ignore=shutil.ignore_patterns("features"))
    settings = {"train_steps": 2, "eval_steps": 1, "length_buckets": 1}
    config = config_of(texts, tmp_path / "run", eval_batch_size=16, **settings)
    evaluated: list[int] = []

    def put(table: OutputTable, rows: np.ndarray, outputs: Any) -> None:
        evaluated.append(len(rows))
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(OutputTable, "put", put)
    with pytest.raises(SystemExit, match="143"):
        run_classifier.main(config)
    assert evaluated == [16] and not (tmp_path / "run" / "train_results.json").exists()
    monkeypatch.undo()
    settings |= {"eval_batch_size": 20, "output_path": tmp_path / "results", "feature_dir": tmp_path / "features"}
    again = config_of(texts / ".." / "texts", tmp_path / "run", **settings)
    write_table(texts / "dev.tsv", 45, 9)
    with pytest.raises(CheckpointError, match="trained on other data: dev texts_sha256 was"):
        run_classifier.main(again)
    write_table(texts / "dev.tsv", 45, 2)
    run_classifier.main(again)
    best, results = read(tmp_path / "run" / "best_checkpoint.json"), read(tmp_path / "results" / "eval_results.json")
    assert best["step"] == results["step"] and best["accuracy"] == pytest.approx(results["accuracy"])


def test_warm_start_takes_the_backbone_and_several_seeds_are_summarised(
    data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each seed's only checkpoint is evaluated once, while training."""
    config = config_of(
        data, tmp_path, load_pretrain_checkpoint_path=run, num_seeds=2, train_steps=1, seed=3, eval_batch_size=45
    )
    put, batches = OutputTable.put, []
    monkeypatch.setattr(OutputTable, "put", lambda *given: (batches.append(given), put(*given)))
    run_classifier.main(config)
    assert len(batches) == 2
    assert " 0 missing" in capsys.readouterr().out
    results = read(tmp_path / "eval_results.json")
    scores = [results["seeds"][seed]["accuracy"] for seed in ("3", "4")]
    assert results["mean"]["accuracy"] == pytest.approx(sum(scores) / 2) and min(scores) >= 0.9
    assert results["collapsed_seeds"] == []
    assert (tmp_path / "seed-4" / "best_checkpoint.json").exists()


def test_all_seeds_start_from_the_same_weights(data: Path, run: Path, tmp_path: Path) -> None:
    """Also where a pre-training writes newer ones meanwhile."""
    weights = shutil.copytree(run, tmp_path / "weights")
    found: list[Path] = []
    here = SimpleNamespace(start=weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finetuning, "load_backbone", lambda _, contents: found.append(contents.path))
        Finetuning.initialise(here, None)
        newest = list_checkpoints(weights)[0][1]
        shutil.copy(newest, weights / "albert-99999.ckpt")
        (weights / "best_checkpoint.json").unlink()
        Finetuning.initialise(here, None)
    assert found[0] == found[1] != weights / "albert-99999.ckpt"


def test_seeds_share_what_is_compiled_and_nothing_else_and_a_killed_run_loses_nothing(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cold, with dropout: the second seed's checkpoint and that of a run that was killed in its second epoch, before
    update 18, are bit for bit that of a run of its own."""
    settings = {"seed": 3, "epoch_num": 2, "albert_cfg.hidden_dropout_prob": 0.2}
    run_classifier.main(config_of(data, tmp_path / "two", num_seeds=2, **settings))
    both = capsys.readouterr().out
    settings["seed"] = 4
    run_classifier.main(config_of(data, tmp_path / "one", **settings))
    alone = capsys.readouterr().out
    assert both.count("compiling for batches of") == alone.count("compiling for batches of") > 0
    killed, start = config_of(data, tmp_path / "killed", save_checkpoint_steps=5, **settings), Trainer.start

    def start_or_die(trainer: Trainer, micro_batches: list) -> None:
        if trainer.progress.step == 17:
            raise KeyboardInterrupt  # nothing is saved at this moment, as after kill -9
        start(trainer, micro_batches)

    monkeypatch.setattr(Trainer, "start", start_or_die)
    with pytest.raises(KeyboardInterrupt):
        run_classifier.main(killed)
    monkeypatch.undo()
    run_classifier.main(killed)
    assert "resuming after step 15" in capsys.readouterr().out
    runs = (tmp_path / name / "albert-24.ckpt" for name in ("two/seed-4", "killed", "one"))
    second, again, own = (find_checkpoint(run).values for run in runs)
    assert second.keys() == again.keys() == own.keys()
    for name, value in own.items():
        np.testing.assert_array_equal(second[name], value, err_msg=name)
        np.testing.assert_array_equal(again[name], value, err_msg=name)


def test_a_dry_run_keeps_features_alone(
    data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    features = tmp_path / "features"
    run_classifier.main(config_of(data, tmp_path / "run", dry_run=True, feature_dir=features))
    assert str(features) in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [features]
    with pytest.raises(ConfigError, match="dry_run"):
        run_classifier.main(evaluating(data, run, dry_run=True))


def test_weights_of_another_head_are_refused(data: Path, run: Path, tmp_path: Path) -> None:
    config = evaluating(data, run, label_list="bad,good,great", output_path=tmp_path)
    with pytest.raises(CheckpointError, match=r"labels is \['bad', 'good'\]"):
        run_classifier.main(config)
    config = config.replace(label_list=(), albert_cfg=config.albert_cfg.replace(num_attention_heads=1))
    with pytest.raises(CheckpointError, match="num_attention_heads"):
        run_classifier.main(config)


def test_weights_of_another_task_are_refused_by_their_task(data: Path, tmp_path: Path) -> None:
    """Whatever the options say of labels, and before any text is read."""
    weights = make_folder(tmp_path / "weights", "squad_v1")
    with pytest.raises(CheckpointError, match="task is squad_v1"):
        run_classifier.main(
            evaluating(data, weights, vocab_file_path="", output_path=tmp_path, data_dir=tmp_path / "nowhere")
        )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"max_seq_length": 64}, "max_seq_length is 64"),
        ({"num_class": 3}, "num_class is 3, .* 2 labels"),
        ({"num_class": 1, "label_list": "bad,good"}, "label_list"),
        ({"task_name": "sts-b", "num_class": 5}, "num_class above 1"),
        ({"seed": 2**32 - 1, "num_seeds": 2}, "seed is 4294967295 and num_seeds is 2"),
        ({"do_train": False, "load_finetune_checkpoint_path": "x", "num_seeds": 2}, "num_seeds .*do_train"),
        ({"assessment_method": "spearman_correlation"}, "spearman_correlation"),
        ({"albert_cfg.type_vocab_size": 1, "text_b_column": "label"}, "type_vocab_size is 1"),
        ({"output_path": __file__}, "output_path is .*test_run_classifier.py"),
        ({"output_path": f"{__file__}/x", "dry_run": True}, "output_path is .*: Not a directory"),
        ({"save_finetune_checkpoint_path": __file__}, "save_finetune_checkpoint_path is .*: Not a directory"),
        ({"save_finetune_checkpoint_path": __file__, "dry_run": True}, "save_finetune_checkpoint_path is "),
        ({"do_predict": True, "test_file": "nothing.tsv"}, r"nothing\.tsv"),
    ],
)
def test_contradictions_end_before_any_work(data: Path, tmp_path: Path, changes: dict, named: str) -> None:
    with pytest.raises((ConfigError, DataError), match=named):
        run_classifier.main(config_of(data, tmp_path / "run", **changes))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dry_run", [False, True])
def test_fewer_rows_than_a_batch_are_an_error(data: Path, tmp_path: Path, dry_run: bool) -> None:
    with pytest.raises(ConfigError, match="train_batch_size"):
        run_classifier.main(config_of(data, tmp_path / "run", max_train_samples=6, dry_run=dry_run))


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("albert_config.json", "num_attention_heads", 2),
        ("task.json", "max_seq_length", 16),
        ("tokenizer_config.json", "do_lower_case", False),
    ],
)
def test_values_that_fit_the_weights_and_are_not_theirs_are_noticed(
    data: Path, run: Path, tmp_path: Path, name: str, key: str, value: Any
) -> None:
    weights = shutil.copytree(run, tmp_path / "run")
    (weights / name).write_text(json.dumps(read(weights / name) | {key: value}))
    with pytest.raises((CheckpointError, DataError), match=f"{key} is {value}|{name} was changed"):
        run_classifier.main(evaluating(data, weights, output_path=tmp_path))


@pytest.mark.parametrize("vocabulary", [{}, {"vocab_file_path": ""}])
def test_weights_that_must_be_converted_end_it_with_the_command(data: Path, tmp_path: Path, vocabulary: dict) -> None:
    for name in ("config.json", "tokenizer_config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    config = config_of(data, tmp_path / "run", load_pretrain_checkpoint_path=tmp_path, **vocabulary)
    with pytest.raises(CheckpointError, match=rf"convert_ckpt --source hf .* --input {tmp_path} "):
        run_classifier.main(config)


def test_two_processes_do_what_one_does(data: Path, tmp_path: Path) -> None:
    """Equal global batches give equal losses, and every example of the sets is predicted once, by one of the two."""
    common = {"train_steps": 12, "eval_steps": 6, "do_predict": True}
    run_classifier.main(config_of(data, tmp_path / "one", **common))
    settings = common | {"train_batch_size": 8, "distribute": True, "device_num": 2}
    (tmp_path / "logs").mkdir()
    launch = [sys.executable, ROOT / "scripts/launch.py", "2", tmp_path / "logs", ROOT / "run_classifier.py"]
    command = [*launch, *classifier_arguments(data, tmp_path / "two", **settings)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    losses = []
    for name in ("one", "two"):
        log = map(json.loads, (tmp_path / name / "train_log.jsonl").read_text().splitlines())
        losses.append([record["loss"] for record in log if "loss" in record])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    for split in ("dev", "test"):
        name = f"predictions_{split}.tsv"
        assert predicted_labels(tmp_path / "one" / name) == predicted_labels(tmp_path / "two" / name)


def test_figures_of_a_test_set_stand_beside_those_of_the_run(data: Path, run: Path, tmp_path: Path) -> None:
    """Unless those are of other weights."""
    weights = shutil.copytree(run, tmp_path / "run")
    results = weights / "eval_results.json"
    before = read(results)
    (weights / "predictions_test.tsv").unlink()
    run_classifier.main(evaluating(data, weights, do_eval=False, do_predict=True))
    assert (weights / "predictions_test.tsv").exists()
    assert read(results) == before  # of a test set without labels there are none
    labelled = evaluating(data, weights, do_eval=False, do_predict=True, test_file=data / "dev.tsv")
    run_classifier.main(labelled)
    after = read(results)
    assert after["test_accuracy"] == before["accuracy"]
    assert before.items() <= after.items()
    write_json(results, before | {"step": before["step"] - 1})
    run_classifier.main(labelled)
    assert "accuracy" not in read(results)


def test_weights_whose_outputs_are_no_numbers_are_not_scored(data: Path, run: Path, tmp_path: Path) -> None:
    model = ModelFolder.load(run)
    head = next(name for name in model.weights if name.startswith("classifier."))
    broken = model.with_weights(model.weights | {head: np.full_like(model.weights[head], np.inf)})
    broken.save(tmp_path / "run")
    with pytest.raises(UserError, match="dev split"):
        run_classifier.main(evaluating(data, tmp_path / "run"))


def test_an_evaluation_in_training_may_be_no_numbers(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """It chooses no checkpoint, and the training goes on."""
    put, rows = OutputTable.put, []

    def put_nan_first(table: OutputTable, numbers: np.ndarray, outputs: Any) -> None:
        put(table, numbers, outputs)
        rows.extend(numbers[numbers >= 0])
        if len(rows) <= 45:
            table.values["logits"][:] = np.nan

    monkeypatch.setattr(OutputTable, "put", put_nan_first)
    run_classifier.main(config_of(data, tmp_path / "run", epoch_num=2))
    evaluated = evaluated_steps(tmp_path / "run")
    first, second = sorted(evaluated)
    assert evaluated[first] is None
    assert evaluated[second] > 0
    assert read(tmp_path / "run/best_checkpoint.json")["step"] == second
    assert f"step {first}: accuracy is nan" in capsys.readouterr().out
