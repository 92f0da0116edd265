"""Any number of labels for a text: metrics and thresholds by scikit-learn, and a run from tables to answers."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score

import run_classifier
from export import main as export
from model_utils.convert_ckpt import ConvertConfig
from model_utils.convert_ckpt import main as convert
from model_utils.errors import ConfigError, DataError
from model_utils.schema import load_config
from src.create_finetune_data import TextColumns, read_examples
from src.finetuning.finetune import find_tokenizer
from src.inference.deploy_config import ExportConfig
from src.inference.exported_model import load_exported
from src.model_folder import ModelFolder
from src.tasks.classification_examples import ClassifierConfig
from src.tasks.multi_label import MultiLabelTask, fit_thresholds, multi_label_metrics
from tests.helpers.answers import assert_close
from tests.helpers.classifier_run import read, read_columns
from tests.helpers.finetune_arguments import arguments
from tests.helpers.trained_folders import ARCHITECTURE, write_vocabulary

TEXTS = {
    "a b c": "sport|news",
    "d e": " art ",
    "f": "news",
    "g h": "sport",
    "i": "art | news",
    "j k l": "",
    "m": "art|sport",
}
MODEL = {
    key: getattr(ARCHITECTURE, key)
    for key in ("embedding_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
}


@pytest.fixture
def decisions() -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and gold labels (200, 5); no row has the last label."""
    random = np.random.default_rng(6)
    gold = random.random((200, 5)) < [0.5, 0.3, 0.1, 0.02, 0.0]
    probabilities = np.clip(gold * 0.3 + random.random((200, 5)) * 0.7, 0, 1).astype(np.float32).round(2)
    return probabilities, gold


def test_metrics_are_those_of_scikit_learn(decisions: tuple[np.ndarray, np.ndarray]) -> None:
    probabilities, gold = decisions
    predictions = probabilities > 0.5
    metrics = multi_label_metrics(predictions, gold)
    for average in ("micro", "macro", "samples"):
        assert metrics[f"{average}_f1"] == f1_score(gold, predictions, average=average, zero_division=0)
    assert metrics["exact_match"] == (predictions == gold).all(1).mean()


def test_no_threshold_has_a_larger_f1(decisions: tuple[np.ndarray, np.ndarray]) -> None:
    probabilities, gold = decisions
    thresholds = fit_thresholds(probabilities, gold)
    assert thresholds[4] == 0.5  # no row has the label
    for label in range(4):
        values = probabilities[:, label]
        fitted = f1_score(gold[:, label], values > thresholds[label])
        assert fitted == max(f1_score(gold[:, label], values > limit) for limit in np.append(values, -1))


def test_equal_probabilities_are_not_separated() -> None:
    probabilities = np.array([[0.4], [0.4], [0.2]], np.float32)
    assert fit_thresholds(probabilities, np.array([[True], [False], [False]])) == pytest.approx([0.3])


def test_a_threshold_separates_neighbouring_numbers() -> None:
    one = np.float32(1.0)
    below = np.nextafter(one, np.float32(0))
    probabilities = np.array([[one], [below]], np.float32)
    gold = np.array([[True], [False]])
    assert ((probabilities > fit_thresholds(probabilities, gold)) == gold).all()


def write_table(path: Path, rows: dict[str, str]) -> None:
    path.write_text("\n".join(["text_a\tlabel", *(f"{text}\t{labels}" for text, labels in rows.items())]) + "\n")


def config_of(folder: Path, **changes: Any) -> ClassifierConfig:
    settings = {
        "data_dir": folder,
        "multi_label": True,
        "vocab_file_path": write_vocabulary(folder),
        "feature_dir": folder / "features",
        "save_finetune_checkpoint_path": folder / "run",
        "max_seq_length": 16,
        "train_batch_size": 7,
        "train_steps": 100,
        "eval_steps": 50,
        "optimizer_cfg.AdamWeightDecay.learning_rate": 0.01,
    }
    model = MODEL | {"max_position_embeddings": 40, "initializer_range": 0.2}
    return load_config(ClassifierConfig, arguments(model, settings | changes))


def test_a_development_file_without_any_label_is_labelled_and_a_test_file_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for split, labels in (("train", "art"), ("dev", ""), ("test", "")):
        write_table(tmp_path / f"{split}.tsv", {"a": labels, "b": labels and "news"})
    config = config_of(tmp_path, do_predict=True)
    task = MultiLabelTask(config, find_tokenizer(config))
    assert task.split("dev").features().arrays["labels"].tolist() == [[0, 0], [0, 0]]
    (warning,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert "dev.tsv" in warning and "'art', 'news'" in warning  # labels that no threshold can be fitted for
    assert "label_ids" not in task.split("test").features().columns


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and a run that has learnt them."""
    folder = tmp_path_factory.mktemp("multi_label")
    for name in ("train", "dev", "test"):
        write_table(folder / f"{name}.tsv", TEXTS)
    run_classifier.main(config_of(folder, do_predict=True))
    return folder


def test_a_run_learns_fits_thresholds_and_writes_its_predictions(folder: Path) -> None:
    results = read(folder / "run/eval_results.json")
    assert results["micro_f1"] == results["exact_match"] == results["test_exact_match"] == 1.0
    assert results["baselines"]["micro_f1"] < 0.7
    task_info = read(folder / "run/task.json")
    assert task_info["task"] == "multi_label" and task_info["labels"] == ["art", "news", "sport"]
    assert len(task_info["thresholds"]) == 3 and set(task_info["thresholds"]) != {0.5}
    predictions = read_columns(folder / "run/predictions_dev.tsv")["prediction"]
    assert predictions == ["news|sport", "art", "news", "sport", "art|news", "", "art|sport"]
    assert read(folder / "run/report_dev.json")["classes"]["art"] == {
        "precision": 1,
        "recall": 1,
        "f1": 1,
        "support": 3,
    }


def test_the_weights_are_evaluated_again_without_the_option(folder: Path, tmp_path: Path) -> None:
    settings = {"do_train": False, "save_finetune_checkpoint_path": "", "multi_label": False}
    settings |= {"load_finetune_checkpoint_path": folder / "run", "output_path": tmp_path}
    config = config_of(folder, **settings)
    run_classifier.main(config)
    assert read(tmp_path / "eval_results.json")["exact_match"] == 1.0


def test_thresholds_are_not_fitted_on_test_data(folder: Path, tmp_path: Path) -> None:
    run_classifier.main(
        config_of(
            folder, save_finetune_checkpoint_path=tmp_path, do_eval=False, do_predict=True, train_steps=2, eval_steps=0
        )
    )
    assert "thresholds" not in read(tmp_path / "task.json")
    assert 0 <= read(tmp_path / "eval_results.json")["test_micro_f1"] <= 1


def test_checkpoint_and_export_give_the_same_labels(folder: Path, tmp_path: Path) -> None:
    records = [{"text_a": text} for text in TEXTS]
    answers = ModelFolder.load(folder / "run").predictor().predict(records)
    expected = [sorted(label.strip() for label in labels.split("|") if label.strip()) for labels in TEXTS.values()]
    assert [answer["labels"] for answer in answers] == expected
    words = ["--export_ckpt_file", str(folder / "run"), "--export_file_name", str(tmp_path / "model")]
    export(load_config(ExportConfig, words))
    assert_close(load_exported(tmp_path / "model.mindir").predict(records), answers)


def test_labels_and_thresholds_survive_a_conversion(folder: Path, tmp_path: Path) -> None:
    settings = {"input": str(folder / "run"), "output": str(tmp_path / "hf")}
    convert(ConvertConfig(source="mindspore", target="hf", **settings))
    described = read(tmp_path / "hf/config.json")
    assert described["problem_type"] == "multi_label_classification"
    convert(ConvertConfig(source="hf", target="mindspore", input=str(tmp_path / "hf"), output=str(tmp_path / "back")))
    before, after = (ModelFolder.load(path).task_info for path in (folder / "run", tmp_path / "back"))
    assert after.thresholds == before.thresholds and after.labels == before.labels and after.task == "multi_label"


@pytest.mark.oracles
def test_transformers_gives_the_same_probabilities(
    folder: Path, tmp_path: Path, torch: ModuleType, transformers: ModuleType
) -> None:
    convert(ConvertConfig(source="mindspore", target="hf", input=str(folder / "run"), output=str(tmp_path / "hf")))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf").eval()
    predictor = ModelFolder.load(folder / "run").predictor()
    for answer, text in zip(predictor.predict([{"text_a": text} for text in TEXTS]), TEXTS, strict=True):
        tokenizer = predictor.tokenizer
        ids = torch.tensor([[tokenizer.cls_id, *tokenizer.encode(text), tokenizer.sep_id]])
        with torch.no_grad():
            probabilities = torch.sigmoid(model(ids).logits)[0].numpy()
        assert list(answer["probabilities"].values()) == pytest.approx(probabilities, abs=1e-5)


def test_a_label_that_dev_alone_has_is_refused(folder: Path, tmp_path: Path) -> None:
    write_table(tmp_path / "train.tsv", TEXTS)
    write_table(tmp_path / "dev.tsv", {"a": "art|music"})
    with pytest.raises(DataError, match=r"line 2 has the label 'music', allowed are art, news, sport; .*--label_list"):
        run_classifier.main(config_of(tmp_path))


def labels_by_line(path: Path, columns: TextColumns) -> list[str | None]:
    return [example.label for example in read_examples(path, columns)]


def test_labels_are_read_from_columns_of_0_and_1(tmp_path: Path) -> None:
    rows = ["comment,toxic,threat", "a,0,1", "b,1.0,True", "c,0,0"]
    (tmp_path / "train.csv").write_text("\n".join(rows))
    columns = TextColumns("comment", separator="|", indicator_columns=("toxic", "threat"))
    assert labels_by_line(tmp_path / "train.csv", columns) == ["threat", "toxic|threat", ""]
    settings = {"text_a_column": "comment", "indicator_columns": "toxic,threat", "dev_ratio": 0.4}
    config = config_of(tmp_path, **settings, train_batch_size=1, max_train_samples=1)
    assert MultiLabelTask(config, find_tokenizer(config)).labels == ["toxic", "threat"]
    (tmp_path / "unlabelled.csv").write_text("comment,toxic,threat\na,-1,-1\nb,,\n")
    assert labels_by_line(tmp_path / "unlabelled.csv", columns) == [None, None]
    for wrong in ("2", "-1", "", "yes"):
        (tmp_path / "train.csv").write_text("\n".join([*rows, f"d,{wrong},0"]))
        with pytest.raises(DataError, match=r"line 5 .* column toxic, allowed are 0 and 1"):
            labels_by_line(tmp_path / "train.csv", columns)


def test_rows_without_gold_labels_are_not_rows_without_any_label(tmp_path: Path) -> None:
    rows = ["text_a,toxic,threat", "a,0,1", "b,-1,-1", "c,0,0"]
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.csv").write_text("\n".join(rows))
    config = config_of(tmp_path, indicator_columns="toxic,threat", train_batch_size=1, do_predict=True)
    task = MultiLabelTask(config, find_tokenizer(config))
    for split in ("train", "dev", "test"):
        assert [example.text_a for example in task.split(split).examples] == ["a", "c"]
        assert task.split(split).features().arrays["labels"].tolist() == [[0, 1], [0, 0]]
    for values, targets in (("0,0", [[0, 0]]), ("-1,-1", None)):
        (tmp_path / "test.csv").write_text(f"text_a,toxic,threat\na,{values}\n")
        split = MultiLabelTask(config, find_tokenizer(config)).split("test")
        labels = split.features().arrays.get("labels")
        assert labels is None if targets is None else labels.tolist() == targets
        assert ("labelled" in split.manifest()) == (targets is not None)
    (tmp_path / "dev.csv").write_text("text_a,toxic,threat\na,-1,-1\n")
    with pytest.raises(DataError, match="has no row with gold labels"):
        task.split("dev")


def test_labels_are_read_from_json_lists(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    values: list[Any] = [["sport", "news"], [], "art|news", [3, 1]]
    lines = [json.dumps({"text_a": "a", "label": value}) for value in values]
    path.write_text("\n".join(lines))
    columns = TextColumns(separator="|")
    expected = ["sport|news", None, "art|news", "3|1"]
    assert labels_by_line(path, columns) == labels_by_line(path, TextColumns(label="2", separator="|")) == expected
    for wrong in ([["a"]], ["a|b"], [{"name": "a"}]):
        path.write_text("\n".join([*lines, json.dumps({"text_a": "a", "label": wrong})]))
        with pytest.raises(DataError, match="line 5"):
            labels_by_line(path, columns)
    (tmp_path / "dev.tsv").write_text("text_a\tlabel\na\t['sport', 'news']\n")
    with pytest.raises(DataError, match="line 2 has the list"):
        labels_by_line(tmp_path / "dev.tsv", columns)
    with pytest.raises(DataError, match="line 1"):
        labels_by_line(path, TextColumns())  # of a single label


@pytest.mark.parametrize(
    "changes",
    [
        {"class_weights": "balanced"},
        {"assessment_method": "f1"},
        {"label_separator": " "},
        {"task_name": "mrpc"},
        {"indicator_columns": "a,b", "label_list": "a,b"},
        {"indicator_columns": "a|b,c"},
        {"indicator_columns": "a,a"},
    ],
)
def test_options_of_single_labels_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes)) if "task_name" not in changes else "multi_label"):
        config_of(tmp_path, **changes)
