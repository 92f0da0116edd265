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
from model_utils.schema import load_config
from src.assessment_method import assess
from src.checkpoints.checkpoint_files import find_checkpoint, list_checkpoints
from src.create_finetune_data import Example
from src.data.ready_features import ReadySplit
from src.finetuning import training
from src.finetuning.finetune import Finetuning, find_tokenizer
from src.model_card import read_card
from src.model_folder import ModelFolder, read_task_info
from src.tasks import parse_task_info
from src.tasks.classification import ClassifierTask
from src.tasks.classification_examples import ClassifierConfig, CustomExamples
from src.tasks.spec import PreparedSplit
from src.tasks.task_info import DevSplit
from src.training.network_outputs import OutputTable
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
from tests.helpers.finetune_arguments import arguments
from tests.helpers.folder_state import folder_state
from tests.helpers.trained_folders import head_of, make_folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with vocab.txt, train.tsv, dev.tsv and test.tsv."""
    return write_classifier_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_classifier(data, tmp_path_factory.mktemp("run") / "run")


def test_it_learns_and_every_example_is_evaluated_and_predicted(run: Path, tmp_path: Path) -> None:
    results = read(run / "eval_results.json")
    dev, test = write_table(tmp_path / "dev.tsv", 45, 2), write_table(tmp_path / "test.tsv", 21, 3)
    predicted = predicted_labels(run / "predictions_dev.tsv")
    right = sum(one == other for one, other in zip(predicted, dev, strict=True))
    assert results["accuracy"] == pytest.approx(right / 45) and results["accuracy"] >= 0.95
    assert results["baselines"]["accuracy"] == max(dev.count("bad"), dev.count("good")) / 45
    assert results["baselines"].keys() <= results.keys()  # none of a test set without labels
    assert sum(a == b for a, b in zip(predicted_labels(run / "predictions_test.tsv"), test, strict=True)) >= 19


def test_a_finished_run_has_a_card_with_its_results(run: Path) -> None:
    results = read(run / "eval_results.json")
    metadata, sections = read_card(run)
    assert metadata["checkpoint"] == results["checkpoint"]
    [index] = metadata["model-index"]
    [values] = index["results"][0]["metrics"]
    assert values == {"type": "accuracy", "name": "accuracy", "value": results["accuracy"]}
    for split, rows in (("train", 203), ("dev", 45), ("test", 21)):
        assert f"| {split} | {split}.tsv | {rows} |" in sections["Data"]
    assert '["bad", "good"]' in sections["Task"] and '["text_a"]' in sections["Use"]


def test_the_best_checkpoint_is_the_one_that_is_evaluated(run: Path) -> None:
    log = [json.loads(line) for line in (run / "train_log.jsonl").read_text().splitlines()]
    evaluated = {record["step"]: record["eval_accuracy"] for record in log if "eval_accuracy" in record}
    best, results = read(run / "best_checkpoint.json"), read(run / "eval_results.json")
    assert len(evaluated) == 10
    assert best["step"] == results["step"] == max(evaluated, key=lambda step: (evaluated[step], -step))
    assert results["accuracy"] == pytest.approx(evaluated[best["step"]])


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
    config = evaluating(
        data,
        run,
        vocab_file_path="",
        output_path=tmp_path,
        eval_batch_size=7,
        length_buckets=1,
        eval_data_shuffle=True,
        assessment_method="f1",
        do_predict=True,
        max_eval_samples=45,
        max_predict_samples=5,
        seed=12346,
    )
    run_classifier.main(config)
    said = capsys.readouterr().out
    assert " here, and " not in said  # the settings are those of the training
    results = read(tmp_path / "eval_results.json")
    assert results["accuracy"] == read(run / "eval_results.json")["accuracy"]
    assert results["remarks"] == ["dev: f1 is that of the label 'good', the second of bad, good (label_list)"]
    here, there = (read_columns(folder / "predictions_dev.tsv") for folder in (tmp_path, run))
    sure, as_sure = (list(map(float, columns.pop("probability"))) for columns in (here, there))
    assert here == there and sure == pytest.approx(as_sure, abs=1e-5)
    few, all_of_them = (read_columns(folder / "predictions_test.tsv") for folder in (tmp_path, run))
    assert len(few["line"]) == 5 and set(few["line"]) < set(all_of_them["line"])
    assert folder_state(run) == before


def test_settings_other_than_those_of_the_training_are_warned_of(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained = read_task_info(run)
    here = SimpleNamespace(task=SimpleNamespace(task_info=trained.model_copy(update={"max_seq_length": 24})))
    assert Finetuning.check_task(here, run) == trained
    assert caplog.messages == [f"max_seq_length is 24, but 32 in the task.json of {run}"]
    assert caplog.records[0].levelname == "WARNING"
    known = SimpleNamespace(explicit_values=lambda: {"task_name": "ax"})  # of the weights that predict it
    assert Finetuning.check_task(SimpleNamespace(task=SimpleNamespace(task_info=known)), run) == trained
    assert len(caplog.messages) == 1


def test_a_finished_run_is_not_trained_again(data: Path, run: Path, capsys: pytest.CaptureFixture) -> None:
    before = list_checkpoints(run)
    run_classifier.main(config_of(data, run, do_predict=True))
    assert "nothing to train" in capsys.readouterr().out and list_checkpoints(run) == before


def test_a_finished_run_is_not_evaluated_as_that_of_other_data(data: Path, run: Path, tmp_path: Path) -> None:
    here = shutil.copytree(data, tmp_path / "data")
    done = shutil.copytree(run, tmp_path / "run")
    config = (done / "config.yaml").read_text()
    (done / "config.yaml").write_text(config.replace(str(data), str(here)))
    before = (done / "eval_results.json").read_bytes()
    with (here / "train.tsv").open("a", encoding="utf-8") as file:
        file.write((here / "train.tsv").read_text(encoding="utf-8").splitlines()[-1] + "\n")
    with pytest.raises(CheckpointError, match=r"was trained on other data: train rows was .* choose another folder"):
        run_classifier.main(config_of(here, done))
    assert (done / "eval_results.json").read_bytes() == before


def test_runs_of_one_seed_and_of_several_do_not_share_a_folder(data: Path, run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds a single run"):
        run_classifier.main(config_of(data, run, num_seeds=2, dry_run=True))
    several = {"num_seeds": 2, "seed": 12344}
    shutil.copytree(run, tmp_path / "seed-12345")
    with pytest.raises(ConfigError, match="holds runs of several seeds"):
        run_classifier.main(config_of(data, tmp_path, dry_run=True))
    with pytest.raises(ConfigError, match="seed-12345 holds a run of another configuration: epoch_num is"):
        run_classifier.main(config_of(data, tmp_path, epoch_num=77, **several))
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
    assert (tmp_path / "seed-4" / "best_checkpoint.json").exists()


def test_all_seeds_start_from_the_same_weights(data: Path, run: Path, tmp_path: Path) -> None:
    """Also where a pre-training writes newer ones meanwhile."""
    weights = shutil.copytree(run, tmp_path / "weights")
    found: list[Path] = []
    here = SimpleNamespace(start=weights, config=config_of(data, tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "load_backbone", lambda _, contents: found.append(contents.path))
        Finetuning.initialise(here, None)
        newest = list_checkpoints(weights)[0][1]
        shutil.copy(newest, weights / "albert-99999.ckpt")
        (weights / "best_checkpoint.json").unlink()
        Finetuning.initialise(here, None)
    assert found[0] == found[1] != weights / "albert-99999.ckpt"


def test_seeds_share_what_is_compiled_and_nothing_else(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Cold, with dropout: the second seed's checkpoint is bit for bit that of a run of its own."""
    settings = {"seed": 3, "epoch_num": 2, "albert_cfg.hidden_dropout_prob": 0.2}
    run_classifier.main(config_of(data, tmp_path / "two", num_seeds=2, **settings))
    both = capsys.readouterr().out
    settings["seed"] = 4
    run_classifier.main(config_of(data, tmp_path / "alone", **settings))
    alone = capsys.readouterr().out
    assert both.count("compiling for batches of") == alone.count("compiling for batches of") > 0
    second, own = (find_checkpoint(tmp_path / name / "albert-24.ckpt").values for name in ("two/seed-4", "alone"))
    np.testing.assert_equal(second, own)


def test_a_dry_run_keeps_features_alone(
    data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    features = tmp_path / "features"
    run_classifier.main(config_of(data, tmp_path / "run", dry_run=True, feature_dir=features))
    said = capsys.readouterr().out
    assert "dry run: one update with" in said and f"Nothing was kept but features in {features}." in said
    assert list(tmp_path.iterdir()) == [features]
    with pytest.raises(ConfigError, match=r"dry_run is true, .* do_train is false"):
        run_classifier.main(evaluating(data, run, dry_run=True))


def test_figures_of_a_regression_can_be_computed_from_its_predictions(data: Path, tmp_path: Path) -> None:
    """Scores as close to each other as float32 allows."""
    task = ClassifierTask(config_of(data, tmp_path / "run", num_class=1), tokenizer=None)
    scores = np.nextafter(np.float32(0.7), np.float32([0, 0.7, 1]))
    right = np.float32([3, 1, 2])
    records = SimpleNamespace(columns={"label_ids": None}, array=lambda _: right)
    result = task.evaluate(
        PreparedSplit(ReadySplit("dev", Path()), records), {"logits": scores[:, None]}, task.task_info
    )
    result.write(tmp_path)
    columns = read_columns(tmp_path / "predictions_dev.tsv")
    assert list(columns) == ["index", "label", "prediction"]
    again = [np.float32(list(map(float, columns[name]))) for name in ("prediction", "label")]
    assert assess("spearman_correlation", *again) == pytest.approx(result.metrics)
    assert result.metrics["spearman_correlation"] == pytest.approx(-0.5)


def test_gold_scores_are_written_as_the_file_has_them(data: Path, tmp_path: Path) -> None:
    task = ClassifierTask(config_of(data, tmp_path / "run", num_class=1), tokenizer=None)
    labels = ["2.400", "0.1", "3"]
    examples = [Example("a", "", label, Path("dev.tsv"), line) for line, label in enumerate(labels, 2)]
    split = SimpleNamespace(name="dev", examples=examples, complete=True)
    logits = np.float32([[0.1], [2.4], [1e-7]])
    task._write(split, logits, np.float32([2.4, 0.1, 3]), tmp_path)
    columns = read_columns(tmp_path / "predictions_dev.tsv")
    assert list(columns["label"]) == labels and list(columns["prediction"]) == ["0.1", "2.4", "1e-07"]


@pytest.mark.parametrize("cap", [0, 1, 2, 3])
def test_a_capped_test_set_is_no_submission(data: Path, tmp_path: Path, cap: int) -> None:
    """Unless the cap leaves nothing out."""
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\ta dull film\n1\ta fine film\n")
    settings = {"task_name": "sst-2", "data_dir": tmp_path, "do_predict": True, "max_predict_samples": cap}
    task = ClassifierTask(config_of(data, tmp_path / "run", **settings), tokenizer=None)
    prepared = PreparedSplit(task.split("test"), SimpleNamespace(columns={}))
    result = task.evaluate(prepared, {"logits": np.float32([[1, 0], [0, 3]])[: cap or 2]}, task.task_info)
    result.write(tmp_path)
    assert predicted_labels(tmp_path / "predictions_test.tsv") == ["0", "1"][: cap or 2]
    assert (tmp_path / "SST-2.tsv").exists() == (cap != 1)
    assert [warning.split()[0] for warning in result.warnings] == (["SST-2.tsv"] if cap == 1 else [])


def test_a_submission_of_clue_has_the_codes_of_its_labels(data: Path, tmp_path: Path) -> None:
    (tmp_path / "test.json").write_text('{"id": 7, "sentence": "a dull film"}\n{"id": 9, "sentence": "a fine film"}\n')
    settings = {"task_name": "tnews", "data_dir": tmp_path, "do_predict": True}
    task = ClassifierTask(config_of(data, tmp_path / "run", **settings), tokenizer=None)
    prepared = PreparedSplit(task.split("test"), SimpleNamespace(columns={}))
    task.evaluate(prepared, {"logits": np.eye(15, dtype=np.float32)[[3, 5]]}, task.task_info).write(tmp_path)
    assert predicted_labels(tmp_path / "predictions_test.tsv") == ["news_sports", "news_house"]
    lines = (tmp_path / "tnews11_predict.json").read_text().splitlines()
    assert list(map(json.loads, lines)) == [{"id": 7, "label": "103"}, {"id": 9, "label": "106"}]


def test_weights_of_another_head_are_refused(data: Path, run: Path, tmp_path: Path) -> None:
    config = evaluating(data, run, label_list="bad,good,great", output_path=tmp_path)
    with pytest.raises(CheckpointError, match=r"another head: labels is \['bad', 'good'\]"):
        run_classifier.main(config)
    config = config.replace(label_list=(), albert_cfg=config.albert_cfg.replace(num_attention_heads=1))
    with pytest.raises(CheckpointError, match=r"trained with num_attention_heads \d+: leave out"):
        run_classifier.main(config)


def test_weights_of_another_task_are_refused_by_their_task(data: Path, tmp_path: Path) -> None:
    """Whatever the options say of labels, and before any text is read."""
    weights = make_folder(tmp_path / "weights", "squad_v1")
    config = evaluating(data, weights, vocab_file_path="", output_path=tmp_path, data_dir=tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="another head: task is squad_v1, but classification or regression"):
        run_classifier.main(config)


def test_weights_say_that_the_task_is_a_regression(data: Path, tmp_path: Path) -> None:
    config = evaluating(data, tmp_path)
    task = ClassifierTask(config, find_tokenizer(config), head_of("regression"))
    assert task.regression and task.task_info.task == "regression" and task.method == "spearman_correlation"
    assert not ClassifierTask(config, find_tokenizer(config), head_of("classification", "bad", "good")).regression
    with pytest.raises(ConfigError, match="allowed is 0 or 1 for a regression") as error:
        ClassifierTask(config.replace(num_class=2), find_tokenizer(config), head_of("regression"))
    assert (error.value.key, error.value.value) == ("num_class", 2)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"max_seq_length": 64}, "max_seq_length is 64, but the model has max_position_embeddings"),
        ({"num_class": 3}, "num_class is 3, but there are 2 labels"),
        (
            {"num_class": 1, "label_list": "bad,good"},
            "label_list is .* no effect: the task is a regression",
        ),
        ({"task_name": "sts-b", "num_class": 5}, "num_class is 5, allowed is 0 or 1"),
        ({"seed": 2**32 - 1, "num_seeds": 2}, "seed is 4294967295, allowed is at most 4294967294 with num_seeds 2"),
        ({"do_train": False, "load_finetune_checkpoint_path": "x", "num_seeds": 2}, "num_seeds .* do_train is false"),
        ({"assessment_method": "spearman_correlation"}, "spearman_correlation is for regressions"),
        (
            {"albert_cfg.type_vocab_size": 1, "text_b_column": "label"},
            "type_vocab_size is 1, allowed is at least 2 for pairs of texts",
        ),
        ({"output_path": __file__}, "output_path is .*test_run_classifier.py', but nothing can be written there"),
        ({"output_path": f"{__file__}/x", "dry_run": True}, "output_path is .*: Not a directory"),
    ],
)
def test_contradictions_end_before_any_work(data: Path, tmp_path: Path, changes: dict, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        run_classifier.main(config_of(data, tmp_path / "run", **changes))
    assert not list(tmp_path.iterdir())


def test_values_that_fit_the_weights_and_are_not_theirs_are_noticed(data: Path, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    config = evaluating(data, tmp_path / "run", output_path=tmp_path)
    changes = {
        "albert_config.json": ("num_attention_heads", 2, r"num_attention_heads is 2, but albert-.* was trained with 4"),
        "task.json": ("max_seq_length", 16, r"task\.json was changed after it was written"),
        "tokenizer_config.json": ("do_lower_case", False, r"tokenizer_config\.json was changed after it was written"),
    }
    for name, (key, value, sentence) in changes.items():
        file = tmp_path / "run" / name
        whole = file.read_text()
        file.write_text(json.dumps(json.loads(whole) | {key: value}))
        with pytest.raises((CheckpointError, DataError), match=sentence):
            run_classifier.main(config)
        file.write_text(whole)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_run_that_could_not_be_saved_ends_before_any_work(data: Path, tmp_path: Path, dry_run: bool) -> None:
    with pytest.raises(ConfigError, match=r"save_finetune_checkpoint_path is .*vocab\.txt.*: Not a directory"):
        run_classifier.main(config_of(data, data / "vocab.txt", dry_run=dry_run, feature_dir=tmp_path / "features"))
    assert not list(tmp_path.iterdir())


def test_weights_that_must_be_converted_end_it_with_the_command(data: Path, tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    for name in ("config.json", "tokenizer_config.json", "model.safetensors"):
        (tmp_path / "hf" / name).write_text("{}")
    for vocabulary in ("", data / "vocab.txt"):
        config = config_of(
            data, tmp_path / "run", load_pretrain_checkpoint_path=tmp_path / "hf", vocab_file_path=vocabulary
        )
        with pytest.raises(CheckpointError, match=r"convert_ckpt --source hf .* --input .*hf --output DIR"):
            run_classifier.main(config)


def test_texts_to_predict_are_missed_before_the_training(data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing\.tsv cannot be read: No such file"):
        run_classifier.main(config_of(data, tmp_path / "run", do_predict=True, test_file=tmp_path / "nothing.tsv"))
    assert not list(tmp_path.iterdir())


def test_two_processes_do_what_one_does(data: Path, tmp_path: Path) -> None:
    """Equal global batches give equal losses, and every example of the sets is predicted once, by one of the two."""
    common = {"train_steps": 12, "eval_steps": 6, "do_predict": True}
    run_classifier.main(config_of(data, tmp_path / "one", **common))
    settings = common | {"train_batch_size": 8}
    launch = [sys.executable, ROOT / "scripts/launch.py", "2", tmp_path / "logs", ROOT / "run_classifier.py"]
    command = [*launch, *classifier_arguments(data, tmp_path / "two", **settings)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    logs = [
        [json.loads(line) for line in (tmp_path / name / "train_log.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    ]
    losses = [[record["loss"] for record in log if "loss" in record] for log in logs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    for split in ("dev", "test"):
        name = f"predictions_{split}.tsv"
        assert predicted_labels(tmp_path / "one" / name) == predicted_labels(tmp_path / "two" / name)


def test_the_names_of_the_texts_columns_are_known(tmp_path: Path) -> None:
    """task.json has them, for records to be read by (src/tasks/record_processor.py)."""
    (tmp_path / "train.csv").write_text("review,title,label\nfine,a,good\n")
    (tmp_path / "plain.tsv").write_text("good\tfine\ta\n")

    def names(**settings: Any) -> dict[str, str]:
        return CustomExamples(load_config(ClassifierConfig, arguments({}, settings))).text_columns()

    assert names(train_file=tmp_path / "train.csv", text_a_column="1") == {"text_a": "review"}
    both = {"text_a_column": "review", "text_b_column": 2}
    assert names(train_file=tmp_path / "train.csv", **both) == {"text_a": "review", "text_b": "title"}
    headless = {"column_names": "label,body,head", "text_a_column": "body"}
    assert names(train_file=tmp_path / "plain.tsv", **headless) == {"text_a": "body"}
    assert names(positive_file=tmp_path / "plain.tsv", negative_file=tmp_path / "plain.tsv") == {}


def test_development_examples_are_those_that_the_weights_were_chosen_by(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Others were trained on."""
    write_table(tmp_path / "train.tsv", 40, 4)
    settings = {"data_dir": tmp_path, "dev_file": "", "train_file": "", "test_file": ""}
    config = config_of(data, tmp_path / "run", seed=7, dev_ratio=0.2, **settings)
    tokenizer = find_tokenizer(config)
    training = ClassifierTask(config, tokenizer)
    again = evaluating(data, tmp_path, **settings)
    known = parse_task_info(training.task_info.explicit_values(), "task.json")
    task = ClassifierTask(again, tokenizer, known)
    assert [one.line for one in task.examples.read("dev")] == [one.line for one in training.examples.read("dev")]
    assert "dev_ratio 0.2, seed" in capsys.readouterr().out
    silent = known.model_copy(
        update={"dev_split": DevSplit(ratio=0.2, seed=7, stratified=True)}
    )  # about the file, as others were
    assert ClassifierTask(again, tokenizer, silent).examples.read("dev") == task.examples.read("dev")
    elsewhere = ClassifierTask(again, tokenizer, known.model_copy(update={"dev_split": None}))
    assert elsewhere.examples.read("dev") != task.examples.read("dev")
    assert "dev_ratio 0.1 and seed 12345" in capsys.readouterr().out


def test_no_share_of_a_training_file_that_has_changed_is_evaluated(data: Path, tmp_path: Path) -> None:
    """Rows that were trained on would be in it; a label decides on its row, too, where classes are split alike."""
    file = tmp_path / "train.tsv"
    write_table(file, 40, 4)
    settings = {"data_dir": tmp_path, "dev_file": "", "train_file": "", "test_file": ""}
    config = config_of(data, tmp_path / "run", **settings)
    known = ClassifierTask(config, find_tokenizer(config)).task_info
    again = evaluating(data, tmp_path, **settings)
    header, *rows = file.read_text().splitlines()
    assert CustomExamples(again, known).dev_split == known.dev_split
    corrected = "\n".join(rows).replace("\tbad", "\tgood", 1).splitlines()
    for changed in (rows[1:], [*rows, rows[0]], rows[::-1], corrected):
        file.write_text("\n".join([header, *changed]) + "\n")
        with pytest.raises(DataError, match=r"train\.tsv has other texts"):
            CustomExamples(again, known)
    write_table(tmp_path / "dev.tsv", 10, 5)
    assert len(CustomExamples(again, known).read("dev")) == 10


@pytest.mark.parametrize("dry_run", [False, True])
def test_fewer_rows_than_a_batch_are_a_sentence(data: Path, tmp_path: Path, dry_run: bool) -> None:
    config = config_of(data, tmp_path / "run", max_train_samples=6, dry_run=dry_run)
    with pytest.raises(ConfigError, match="the data has fewer rows than one batch of 16: lower train_batch_size"):
        run_classifier.main(config)


def test_a_label_of_one_row_is_trained_on(data: Path, tmp_path: Path) -> None:
    write_table(tmp_path / "train.tsv", 40, 4)
    settings = {"data_dir": tmp_path, "dev_file": "", "train_file": "", "test_file": ""}
    config = config_of(data, tmp_path / "run", **settings)
    tokenizer = find_tokenizer(config)
    line = ClassifierTask(config, tokenizer).examples.read("dev")[0].line
    rows = (tmp_path / "train.tsv").read_text().splitlines()
    rows[line - 1] = rows[line - 1].rsplit("\t", 1)[0] + "\trare"
    (tmp_path / "train.tsv").write_text("\n".join(rows) + "\n")
    task = ClassifierTask(config, tokenizer)
    assert task.labels == ["bad", "good", "rare"]
    assert "rare" in {example.label for example in task.examples.read("train")}


def test_predictions_alone_leave_the_figures_of_the_run(data: Path, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    figures = read(run / "eval_results.json")
    (tmp_path / "run/predictions_test.tsv").unlink()
    run_classifier.main(evaluating(data, tmp_path / "run", do_eval=False, do_predict=True))
    assert read(tmp_path / "run/eval_results.json") == figures and (tmp_path / "run/predictions_test.tsv").exists()


def test_figures_of_a_test_set_stand_beside_those_of_the_run(data: Path, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    before = read(run / "eval_results.json")
    run_classifier.main(evaluating(data, tmp_path / "run", do_eval=False, do_predict=True, test_file=data / "dev.tsv"))
    after = read(tmp_path / "run/eval_results.json")
    assert after["test_accuracy"] == before["accuracy"] and before.items() <= after.items()


def test_weights_whose_outputs_are_no_numbers_are_not_scored(data: Path, run: Path, tmp_path: Path) -> None:
    model = ModelFolder.load(run)
    head = next(name for name in model.weights if name.startswith("classifier."))
    broken = model.with_weights(model.weights | {head: np.full_like(model.weights[head], np.inf)})
    broken.save(tmp_path / "run")
    config = evaluating(data, tmp_path / "run")
    with pytest.raises(UserError, match=rf"not finite: {head}"):
        run_classifier.main(config)


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
    log = [json.loads(line) for line in (tmp_path / "run/train_log.jsonl").read_text().splitlines()]
    evaluated = {record["step"]: record["eval_accuracy"] for record in log if "eval_accuracy" in record}
    first, second = sorted(evaluated)
    assert evaluated[first] is None and evaluated[second] > 0
    assert read(tmp_path / "run/best_checkpoint.json")["step"] == second
    assert f"evaluation after step {first}: accuracy is nan" in capsys.readouterr().out


def test_polarity_files_stand_in_place_of_the_folders_training_file(data: Path, tmp_path: Path) -> None:
    for name in ("positive", "negative"):
        (tmp_path / f"{name}.txt").write_text(f"so {name}\n")
    named = {f"{name}_file": tmp_path / f"{name}.txt" for name in ("positive", "negative")}
    shutil.copytree(data, tmp_path / "data", ignore=shutil.ignore_patterns("features"))
    for name in ("train.csv", "test.csv"):  # several are an error only of a split that is read
        (tmp_path / "data" / name).touch()
    config = config_of(data, tmp_path, data_dir=tmp_path / "data", **named)
    examples = CustomExamples(config)
    assert len(examples.read("dev")) == 45
    with pytest.raises(DataError, match=r"several test files: test\.csv, test\.tsv; name one with --test_file"):
        examples.read("test")
    named = config.replace(do_predict=True, test_file=str(data / "test.tsv"))
    assert len(CustomExamples(named).read("test")) == 21
    assert {one.text_a for one in examples.read("train")} == {"so positive", "so negative"}


def test_weights_of_pairs_are_not_evaluated_on_single_texts(data: Path) -> None:
    config = evaluating(data, "run")
    known = head_of("classification", "bad", "good")
    pairs = known.model_copy(update={"text_columns": {"text_a": "premise", "text_b": "claim"}})
    with pytest.raises(
        ConfigError, match="text_b_column is '', but the weights were trained on premise and claim; nam"
    ):
        CustomExamples(config, pairs)
    CustomExamples(config.replace(text_b_column="claim"), pairs)
    with pytest.raises(ConfigError, match="text_b_column is 'claim', but the weights were trained on review; name as"):
        CustomExamples(
            config.replace(text_b_column="claim"), known.model_copy(update={"text_columns": {"text_a": "review"}})
        )


POLARITY = {"positive_file": "a", "negative_file": "b", "train_file": "", "dev_file": "", "do_eval": False}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"dev_ratio": 0.3}, "dev_ratio"),
        ({"dev_file": "dev.tsv", "eval_data_file_path": "a.mindrecord"}, "dev_file"),
        ({"train_file": "train.tsv", "train_data_file_path": "a.mindrecord"}, "train_file"),
        ({"positive_file": "a", "negative_file": "b", "train_data_file_path": "a.mindrecord"}, "positive_file"),
        ({**POLARITY, "text_b_column": "b"}, "text_b_column"),
        ({**POLARITY, "column_names": "text,label"}, "column_names"),
        ({"train_file": "a.jsonl", "dev_file": "b.jsonl", "column_names": "text,label"}, "column_names"),
        ({"train_file": "a.parquet", "dev_file": "b.jsonl", "column_names": "text,label"}, "column_names"),
        ({"train_file": "a.parquet", "dev_file": "b.xlsx", "encoding": "gb18030"}, "encoding"),
        ({"train_file": "a.parquet", "dev_file": "b.csv", "sheet": "train"}, "sheet"),
        ({**POLARITY, "sheet": "train"}, "sheet"),
        ({"train_file": "a.jsonl", "dev_file": "b.xlsx", "delimiter": ";"}, "delimiter"),
    ],
)
def test_options_that_do_nothing_are_refused(data: Path, tmp_path: Path, changes: dict, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{key} is .*, .*; leave {key} at "):
        CustomExamples(config_of(data, tmp_path, **changes))


def test_options_of_the_training_do_not_hinder_an_evaluation(data: Path, tmp_path: Path) -> None:
    (tmp_path / "dev.jsonl").write_text('{"text_a": "fine", "label": "good"}\n')
    config = evaluating(
        data, "run", train_file="a.csv", dev_file=tmp_path / "dev.jsonl", delimiter=";", encoding="gb18030"
    )
    assert len(CustomExamples(config).read("dev")) == 1


def test_tables_are_read_in_the_named_encoding(data: Path, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_bytes("文本,标签\n很好,好\n很坏,坏\n".encode("gb18030"))
    (tmp_path / "good.txt").write_bytes("很好\n".encode("gb18030"))
    settings = {"train_file": tmp_path / "train.csv", "text_a_column": "文本", "label_column": "标签"}
    examples = CustomExamples(config_of(data, tmp_path / "run", **settings, encoding="gb18030"))
    assert [example.label for example in examples.read("train")] == ["好", "坏"]
    assert examples.text_columns() == {"text_a": "文本"}
    files = dict.fromkeys(("positive_file", "negative_file"), tmp_path / "good.txt")
    examples = CustomExamples(config_of(data, tmp_path / "run", **files, encoding="gb18030"))
    assert {example.text_a for example in examples.read("train")} == {"很好"}
    with pytest.raises(ConfigError, match="encoding is 'GB-18030-8', allowed is"):
        CustomExamples(config_of(data, tmp_path / "run", encoding="GB-18030-8"))


def test_tables_are_read_with_the_named_delimiter(data: Path, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("sentence, long;label\nfine, really;good\nno, no;bad\n")
    settings = {"train_file": tmp_path / "train.csv", "text_a_column": "1"}
    examples = CustomExamples(config_of(data, tmp_path / "run", **settings, delimiter=";"))
    assert [(example.text_a, example.label) for example in examples.read("train")] == [
        ("fine, really", "good"),
        ("no, no", "bad"),
    ]
    with pytest.raises(DataError, match="delimiter"):
        CustomExamples(config_of(data, tmp_path / "run", **settings)).read("train")


def test_lower_case_is_as_asked_for_where_nothing_beside_the_weights_says_it(data: Path, tmp_path: Path) -> None:
    config = config_of(data, tmp_path / "run", load_pretrain_checkpoint_path=tmp_path, do_lower_case=False)
    assert not find_tokenizer(config).do_lower_case


def test_a_layer_before_the_classifier_is_that_of_the_weights(data: Path, run: Path) -> None:
    known = parse_task_info(read(run / "task.json") | {"classifier_hidden_size": 5}, "task.json")
    config = evaluating(data, run)
    assert ClassifierTask(config, find_tokenizer(config), known).task_info.classifier_hidden_size == 5
