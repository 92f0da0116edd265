"""Token classification end to end: a reduced model learns real sentences by heart, and weights alone find the same."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import run_ner
from model_utils.errors import CheckpointError, ConfigError, DataError
from model_utils.schema import load_config
from src.checkpoints.checkpoint_files import find_checkpoint
from src.data.feature_cache import Features
from src.data.feature_files import Ragged
from src.model_folder import ModelFolder
from src.tasks.entities import entity_scores
from src.tasks.spec import EvaluationResult, PreparedSplit
from src.tasks.tagged_sentences import NerSplit
from src.tasks.task_info import TaskInfo
from src.tasks.token_classification import EntityProcessor, NerConfig, NerTask
from tests.helpers.classifier_run import read_rows
from tests.helpers.finetune_arguments import LEARNER, arguments
from tests.helpers.folder_state import folder_state
from tests.helpers.kills import kill_at

SENTENCES = 32


def config_of(shared: Path, folder: Path, **changes: Any) -> NerConfig:
    settings = {
        "data_dir": folder / "data",
        "spm_model_file": shared / "data/vocab/30k-clean.model",
        "feature_dir": folder / "features",
        "max_seq_length": 24,
        "train_batch_size": 16,
        "epoch_num": 60,
        "eval_steps": 40,
        "optimizer_cfg.AdamWeightDecay.learning_rate": 0.002,
    }
    return load_config(NerConfig, arguments(LEARNER, settings | changes))


@pytest.fixture(scope="module")
def run(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run in which training and development sentences are the same; its data lie beside it."""
    folder = tmp_path_factory.mktemp("ner")
    (folder / "data").mkdir()
    sentences = (shared / "data/ner/conll2003/train.txt").read_text().split("\n\n")[:SENTENCES]
    for name in ("train.txt", "dev.txt"):
        (folder / "data" / name).write_text("\n\n".join(sentences) + "\n")
    (folder / "data/test.txt").write_text("\n\n".join(sentences).replace(" B-MISC", " O") + "\n")
    run_ner.main(config_of(shared, folder, save_finetune_checkpoint_path=folder / "run", do_predict=True))
    return folder / "run"


def read_predictions(path: Path) -> list[list[list[str]]]:
    """For every sentence its rows."""
    return [[line.split(" ") for line in block.splitlines()] for block in path.read_text().split("\n\n")]


def test_the_training_sentences_are_learnt(run: Path) -> None:
    results = json.loads((run / "eval_results.json").read_text())
    assert results["f1"] >= 0.98
    assert results["baselines"]["f1"] < 0.98
    assert results["baselines"]["test_f1_MISC"] == 0.0  # none is left in the test set, which has labels
    assert {name for name in results if name.startswith("f1_")} == {"f1_LOC", "f1_MISC", "f1_ORG", "f1_PER"}


def test_the_prediction_files_give_the_scores(run: Path) -> None:
    results = json.loads((run / "eval_results.json").read_text())
    for split, prefix in (("dev", ""), ("test", "test_")):
        sentences = read_predictions(run / f"predictions_{split}.txt")
        assert len(sentences) == SENTENCES
        gold, predicted = ([[row[column] for row in rows] for rows in sentences] for column in (1, 2))
        scores = entity_scores(gold, predicted)
        assert scores == pytest.approx({name: results[prefix + name] for name in scores})
        classes = json.loads((run / f"report_{split}.json").read_text())["classes"]
        assert {f"{prefix}f1_{label}": figures["f1"] for label, figures in classes.items()} == pytest.approx(
            {name: value for name, value in results.items() if name.startswith(f"{prefix}f1_")}
        )
    assert results["test_f1_MISC"] == 0.0  # none is left there, and they are found


def test_every_word_has_its_place_and_how_sure_its_tag_is(run: Path) -> None:
    rows = read_rows(run / "predictions_dev.tsv")
    columns = [[row[name] for name in ("word", "label", "prediction")] for row in rows]
    assert columns == [row for sentence in read_predictions(run / "predictions_dev.txt") for row in sentence]
    lines = (run.parent / "data/dev.txt").read_text().splitlines()
    assert [lines[int(row["line"]) - 1].split(" ")[0] for row in rows] == [row["word"] for row in rows]
    assert rows[0]["index"] == "0" and rows[-1]["index"] == str(SENTENCES - 1)
    assert all(0.1 <= float(row["probability"]) <= 1 for row in rows)


def test_weights_alone_find_the_same(run: Path, shared: Path, tmp_path: Path) -> None:
    """In words without tags."""
    words = [[row[0] for row in rows] for rows in read_predictions(run / "predictions_dev.txt")]
    bare = tmp_path / "bare.txt"
    bare.write_text("\n\n".join("\n".join(sentence) for sentence in words))
    task = {"do_train": False, "do_eval": False, "do_predict": True, "data_dir": "", "spm_model_file": ""}
    where = {"test_file": bare, "output_path": tmp_path, "load_finetune_checkpoint_path": run}
    before = folder_state(run)
    run_ner.main(config_of(shared, tmp_path, **task, **where))
    assert folder_state(run) == before
    with_tags = read_predictions(run / "predictions_dev.txt")
    assert read_predictions(tmp_path / "predictions_test.txt") == [[[row[0], row[2]] for row in s] for s in with_tags]
    assert not list(tmp_path.glob("report_*"))


def test_a_crf_resumes_after_a_kill_and_is_evaluated_or_refused(
    run: Path, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"data_dir": run.parent / "data", "epoch_num": 2, "save_checkpoint_steps": 1}
    where = [tmp_path / "run", tmp_path / "killed"]
    whole, killed = (config_of(shared, tmp_path, crf=True, save_finetune_checkpoint_path=p, **data) for p in where)
    run_ner.main(whole)
    kill_at(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        run_ner.main(killed)
    run_ner.main(killed)
    expected, again = (find_checkpoint(path / "albert-8.ckpt").values for path in where)
    assert expected["crf.transitions.bias"].any()
    np.testing.assert_equal(again, expected)
    task = {"do_train": False, "data_dir": run.parent / "data", "spm_model_file": "", "output_path": tmp_path}
    run_ner.main(config_of(shared, tmp_path, load_finetune_checkpoint_path=where[0], **task))
    assert (tmp_path / "predictions_dev.txt").read_text() == (where[0] / "predictions_dev.txt").read_text()
    for key in ("crf", "mark_capitals"):
        with pytest.raises(ConfigError, match=f"{key} is true, but the weights to evaluate were trained without it"):
            run_ner.main(config_of(shared, tmp_path, load_finetune_checkpoint_path=run, **{key: True}, **task))
    for key, teacher in (("crf", where[0]), ("mark_capitals", run)):
        changes = {"crf": False, "mark_capitals": key == "mark_capitals", "teacher": str(teacher)}
        with pytest.raises(ConfigError, match=f"its {key} is .* and here it is"):
            run_ner.main(killed.replace(**changes, save_finetune_checkpoint_path=f"{tmp_path}/x"))
    for key, value in (("label_list", "O"), ("teacher", "run")):
        with pytest.raises(ConfigError, match=f"crf is true.*{key}|{key}.*crf is true") as error:
            load_config(NerConfig, arguments({}, {"crf": True, key: value}))
        assert error.value.key in ("crf", key)


def test_marked_capitals_are_learnt_answered_and_kept(shared: Path, tmp_path: Path) -> None:
    """Only its capital letter tells an entity, and the vocabulary has no capitals."""
    (tmp_path / "data").mkdir()
    random = np.random.default_rng(0)
    words = [[str(word) for word in random.choice(["apple", "Apple", "river", "River"], 8)] for _ in range(32)]
    for name in ("train.txt", "dev.txt"):
        sentences = ("\n".join(f"{word} {'B-X' if word.istitle() else 'O'}" for word in sentence) for sentence in words)
        (tmp_path / "data" / name).write_text("\n\n".join(sentences) + "\n")
    where = {"save_finetune_checkpoint_path": tmp_path / "run"}
    run_ner.main(config_of(shared, tmp_path, mark_capitals=True, epoch_num=8, **where))
    assert json.loads((tmp_path / "run/eval_results.json").read_text())["f1"] == 1.0
    answer = ModelFolder.load(tmp_path / "run").predictor().predict([{"text": "apple River river"}])[0]
    assert [entity["text"] for entity in answer["entities"]] == ["River"]
    task = {"do_train": False, "spm_model_file": "", "output_path": tmp_path}
    weights = {"load_finetune_checkpoint_path": tmp_path / "run"}
    run_ner.main(config_of(shared, tmp_path, **task, **weights))
    assert (tmp_path / "predictions_dev.txt").read_text() == (tmp_path / "run/predictions_dev.txt").read_text()
    one_type = {"albert_cfg.type_vocab_size": 1, "save_finetune_checkpoint_path": tmp_path / "other"}
    with pytest.raises(ConfigError) as error:
        run_ner.main(config_of(shared, tmp_path, mark_capitals=True, **one_type))
    assert error.value.key == "mark_capitals"


def test_without_entities_there_is_nothing_to_learn(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("train.txt", "dev.txt"):
        (tmp_path / "data" / name).write_text("a O\nb O\n")
    with pytest.raises(DataError, match=r"train\.txt has no entities"):
        run_ner.main(config_of(shared, tmp_path, save_finetune_checkpoint_path=tmp_path / "run"))


def test_weights_of_other_labels_are_refused(run: Path, shared: Path, tmp_path: Path) -> None:
    settings = {"do_train": False, "load_finetune_checkpoint_path": run, "label_list": "O,B-DISH,I-DISH"}
    data = {"dev_file": tmp_path / "dev.txt", "data_dir": "", "spm_model_file": ""}
    data["dev_file"].write_text("rice B-DISH\n")
    with pytest.raises(CheckpointError, match="fine-tuned for another head: labels is"):
        run_ner.main(config_of(shared, tmp_path, **settings, **data))


@pytest.mark.parametrize("labels", ["O,B-PER,PER", "o,b-per"])
def test_label_list_needs_tags_of_one_scheme(labels: str) -> None:
    with pytest.raises(ConfigError, match="label_list"):
        load_config(NerConfig, arguments({}, {"label_list": labels}))


@pytest.mark.parametrize("labels", ["NN,VB", "O,NN", "B,I", "B,M,E,S", "O,I-PER", "O,B_PER,I_PER"])
def test_label_list_takes_any_scheme(labels: str) -> None:
    assert load_config(NerConfig, arguments({}, {"label_list": labels})).label_list == tuple(labels.split(","))


def ner_task(known: TaskInfo | None = None, **settings: Any) -> NerTask:
    return NerTask(load_config(NerConfig, arguments({}, settings)), None, known)


def evaluate(task: NerTask, split: str, predicted: list[str]) -> EvaluationResult:
    """Evaluate sentences of one token a word, whose words get these tags."""
    sentences = task.read(split)
    counts = np.array([len(sentence.words) for sentence in sentences])
    words = np.array([(row, position) for row, count in enumerate(counts) for position in range(count)])
    arrays = {"words": words, "sentence_words": counts}
    logits = np.eye(len(task.labels))[[task.labels.index(tag) for tag in predicted]]
    prepared = PreparedSplit(NerSplit(split, sentences, task.labels, None, 16), SimpleNamespace(array=arrays.get))
    return task.evaluate(prepared, {"logits": Ragged(logits, counts)}, task.task_info)


def test_columns_of_words_and_tags_are_those_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("B-LOC Bonn x\nO is x\n\nO In y\nB-LOC Rome y\n")
    (tmp_path / "dev.txt").write_text("B-LOC Paris x\n")
    settings = {"data_dir": tmp_path, "word_column": 2, "tag_column": 1, "do_predict": True}
    for text, tags in (("B-LOC Oslo z\n", ("B-LOC",)), ("Oslo\n", None)):
        (tmp_path / "test.txt").write_text(text)
        task = ner_task(**settings)
        assert [sentence.words for sentence in task.read("train")] == [("Bonn", "is"), ("In", "Rome")]
        assert [(one.words, one.tags) for one in task.read("dev")] == [(("Paris",), ("B-LOC",))]
        assert [(one.words, one.tags) for one in task.read("test")] == [(("Oslo",), tags)]
    with pytest.raises(ConfigError, match="word_column is the same") as error:
        ner_task(**settings | {"tag_column": 2})
    assert (error.value.key, error.value.value) == ("tag_column", "2")
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.txt").write_text("Bonn is\tB-LOC O\n")
    with pytest.raises(ConfigError, match="it has no effect") as error:
        ner_task(**settings)
    assert (error.value.key, error.value.value) == ("word_column", "2")


def test_parts_of_speech(tmp_path: Path) -> None:
    """One label a word, none of them O, from reading to metrics; a test file that has them is recognised by them."""
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.txt").write_text("The DT\ndog NN\nbarks VB\n\nbig JJ\ndog NN\n")
    task = ner_task(data_dir=tmp_path, do_predict=True)
    assert task.labels == ["DT", "JJ", "NN", "VB"]
    assert [one.tags for one in task.read("test")] == [("DT", "NN", "VB"), ("JJ", "NN")]
    result = evaluate(task, "test", ["DT", "NN", "NN", "NN", "NN"])
    assert result.metrics["f1"] == result.metrics["tag_accuracy"] == pytest.approx(3 / 5)
    assert result.metrics["f1_NN"] == pytest.approx(2 * 2 / (4 + 2))
    (tmp_path / "dev.txt").write_text("The DT\ncat NN\n")
    changed = ner_task(data_dir=tmp_path)
    train, dev = (PreparedSplit(NerSplit(s, changed.read(s), changed.labels, None, 16), None) for s in ("train", "dev"))
    assert changed.baseline(train, dev)["tag_accuracy"] == 1.0  # an unseen word has the most frequent tag
    (tmp_path / "test.txt").write_text("The\ndog\n")
    weights = ner_task(task.task_info, data_dir=tmp_path, do_train=False, do_eval=False, do_predict=True)
    assert [(one.words, one.tags) for one in weights.read("test")] == [(("The", "dog"), None)]


def test_segments_of_words(tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.txt").write_text("我 B\n喜 B\n欢 I\n", encoding="utf-8")
    task = ner_task(data_dir=tmp_path, do_predict=True)
    assert task.labels == ["B", "I"] and task.read("test")[0].tags == ("B", "B", "I")
    assert evaluate(task, "dev", ["B", "B", "I"]).metrics["f1"] == 1.0
    assert evaluate(task, "dev", ["B", "I", "I"]).metrics["f1"] == 0.0


@pytest.mark.parametrize(("text", "named"), [("a NN\nb NN\n", "'NN'"), ("a\tc\n", "'c'")])
def test_one_tag_alone_is_no_choice(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "train.txt").write_text(text)
    with pytest.raises(DataError, match=rf"train\.txt.*{named}.*tag_column"):
        ner_task(train_file=tmp_path / "train.txt", do_eval=False)


def test_a_column_of_other_words_is_no_column_of_tags(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("".join(f"Word{index} lemma{index}\n" for index in range(40)))
    with pytest.raises(DataError, match=r"train\.txt has 40 tags in 40 words.*tag_column"):
        ner_task(train_file=tmp_path / "train.txt", do_eval=False)


@pytest.mark.parametrize("label", ["", "BRAND NAME", " DISH"])
def test_labels_are_words(label: str) -> None:
    """Columns of tags are separated by spaces."""
    for key, value, wrong in (("name_label", label, label), ("label_list", "O,B-BRAND NAME", "B-BRAND NAME")):
        with pytest.raises(ConfigError, match=f"the label '{wrong}' is not a word without spaces") as error:
            load_config(NerConfig, arguments({}, {key: value}))
        assert error.value.key == key


def test_a_rare_tag_may_stand_in_the_share_for_development_alone(tmp_path: Path) -> None:
    sentences = [f"word{number} B-A\nis O\n" for number in range(20)]
    file = tmp_path / "train.txt"
    file.write_text("\n".join(sentences))
    settings = {"train_file": file, "save_finetune_checkpoint_path": tmp_path / "run"}
    config = load_config(NerConfig, arguments({}, settings))
    line = NerTask(config, None).read("dev")[0].lines[0]
    file.write_text("\n".join(sentences).replace(f"word{(line - 1) // 3} B-A", f"word{(line - 1) // 3} B-RARE"))
    assert NerTask(config, None).labels == ["O", "B-A", "B-RARE"]


def test_options_that_do_nothing_are_refused(tmp_path: Path) -> None:
    for name in ("train.txt", "dev.txt"):
        (tmp_path / name).write_text("word B-A\nis O\n" * 5)

    def task(**settings: Any) -> NerTask:
        return NerTask(load_config(NerConfig, arguments({}, {"data_dir": tmp_path} | settings)), None)

    for option, value in (("name_label", "PER"), ("name_column", "place"), ("text_column", "story")):
        with pytest.raises(ConfigError, match=f"{option} is '{value}', but .*: no file that is read is a table"):
            task(**{option: value})
        assert task(**{option: value}, do_train=False).labels == ["O", "B-A"]
    with pytest.raises(ConfigError, match=r"dev_ratio is 0.3, .*: no share .*; leave .* 0.1"):
        task(dev_ratio=0.3)
    (tmp_path / "dev.csv").write_text("review,dish_name\na fine soup,soup\n")
    with pytest.raises(ConfigError, match=r"name_label is 'DISH', .* entities in 2"):
        task(name_column="2", dev_file=tmp_path / "dev.csv")
    assert task(name_label="A", dev_file=tmp_path / "dev.csv").read("dev")[0].tags == ("O", "O", "B-A")
    (tmp_path / "dev.txt").unlink()
    (tmp_path / "dev.csv").unlink()
    (tmp_path / "train.txt").write_text("word B-A\n\n" * 10)
    assert len(task(dev_ratio=0.3).read("dev")) == 3


def test_no_share_of_a_training_file_that_has_changed_is_evaluated(tmp_path: Path) -> None:
    def task(known: TaskInfo | None = None, **settings: Any) -> NerTask:
        return NerTask(load_config(NerConfig, arguments({}, {"data_dir": tmp_path} | settings)), None, known)

    file = tmp_path / "train.txt"
    file.write_text("".join(f"word{number} B-A\nis O\n\n" for number in range(20)))
    training = task()
    evaluation = {"do_train": False, "seed": 3}
    assert task(training.task_info, **evaluation).read("dev") == training.read("dev")
    file.write_text("new B-A\n\n" + file.read_text())
    with pytest.raises(DataError, match=r"train\.txt has other texts"):
        task(training.task_info, **evaluation)


def test_several_test_files_are_an_error_only_where_one_is_read(tmp_path: Path) -> None:
    for name in ("train.txt", "dev.txt", "test.words.txt", "test.tags.txt"):
        (tmp_path / name).write_text("word B-A\nis O\n")
    task = NerTask(load_config(NerConfig, arguments({}, {"data_dir": tmp_path})), None)
    assert len(task.read("train")) == len(task.read("dev")) == 1
    with pytest.raises(DataError, match=r"several test files: .*; name one with --test_file"):
        task.read("test")


def test_several_training_files_are_an_error_only_where_one_is_read(tmp_path: Path) -> None:
    for name in ("train.txt", "test.txt"):
        (tmp_path / name).write_text("word B-A\nis O\n")
    settings = {"data_dir": tmp_path, "do_eval": False, "do_predict": True}
    trained = NerTask(load_config(NerConfig, arguments({}, settings)), None).task_info
    (tmp_path / "train.copy.txt").write_text("word B-A\nis O\n")
    with pytest.raises(DataError, match=r"several train files: .*; name one with --train_file"):
        NerTask(load_config(NerConfig, arguments({}, settings)), None)
    config = load_config(NerConfig, arguments({}, settings | {"do_train": False}))
    assert len(NerTask(config, None, trained).read("test")) == 1


def test_whether_words_are_characters_is_known(tmp_path: Path) -> None:
    """The training text decides or, where nothing is trained, the weights."""
    settings = {"train_file": tmp_path / "train.txt", "do_eval": False}
    for text, expected in (("2 B-DATE\n0 I-DATE\n年 I-DATE\n在 O\n", True), ("2018 B-DATE\n年 I-DATE\n在 O\n", False)):
        (tmp_path / "train.txt").write_text(text, encoding="utf-8")
        task_info = NerTask(load_config(NerConfig, arguments({}, settings)), None).task_info
        assert task_info.words_are_characters == expected
        evaluation = load_config(NerConfig, arguments({}, settings | {"do_train": False, "do_predict": True}))
        assert NerTask(evaluation, None, task_info).task_info.words_are_characters == expected
    # The text of a table is split here, as one that is asked is.
    (tmp_path / "train.csv").write_text("review,dish_name\n我要红烧肉,红烧肉\n", encoding="utf-8")
    config = load_config(NerConfig, arguments({}, settings | {"train_file": tmp_path / "train.csv"}))
    assert not NerTask(config, None).task_info.words_are_characters


@pytest.mark.parametrize(("first", "follows_scheme"), [("B-A", True), ("I-A", False)])
def test_predicted_tags_follow_the_scheme_of_training(tmp_path: Path, first: str, follows_scheme: bool) -> None:
    """In BIO an I needs a beginning, in IOB1 it may be one; weights keep what they were trained with."""
    (tmp_path / "train.txt").write_text(f"New {first}\nYork I-A\nBonn {first}\nis O\n\n" * 3 + "Bonn B-A\n")
    (tmp_path / "dev.txt").write_text("New B-A\nYork I-A\nis O\n")
    trained = ner_task(data_dir=tmp_path)
    assert trained.task_info.follows_scheme == follows_scheme
    task = ner_task(trained.task_info, data_dir=tmp_path, do_train=False)
    processor = EntityProcessor(task.task_info, SimpleNamespace())
    assert task.labels == ["O", "B-A", "I-A"]
    tags, probabilities = task.task_info.tags(np.array([[1, 0.9, 0], [0, 0, 1], [1, 0, 0]]))
    assert tags == (["B-A", "I-A", "O"] if follows_scheme else ["O", "I-A", "O"])
    answer = processor._answer("New York is", [(0, 3), (4, 8), (9, 11)], tags, probabilities)
    assert [entity["text"] for entity in answer["entities"]] == ["New York" if follows_scheme else "York"]


def test_the_name_of_the_texts_column_is_known(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("id,review,dish_name\n1,a fine soup,soup\n2,a dull soup,soup\n")
    (tmp_path / "train.txt").write_text("soup B-DISH\n")
    for name, column, found in (
        ("csv", "review", {"text": "review"}),
        ("csv", 2, {"text": "review"}),
        ("txt", "review", None),
    ):
        settings = {"train_file": tmp_path / f"train.{name}", "text_column": column, "do_eval": False}
        config = load_config(NerConfig, arguments({}, settings))
        assert NerTask(config, None).task_info.text_columns == (found or {})
    (tmp_path / "train.csv").write_text("review,review,dish_name\na fine soup,x,soup\n")
    task = ner_task(train_file=tmp_path / "train.csv", text_column=1, do_eval=False)
    assert task.task_info.text_columns == {"text": "text"}


def test_windows_within_a_long_word_are_those_of_its_text() -> None:
    """Here rows 1, 2 and 5 have no first token of a word."""
    words = np.array([[0, 1], [3, 1], [4, 1], [4, 2]], np.int32)
    rows = {"input_ids": Ragged(np.zeros(6, np.int32), np.ones(6, np.int64))}
    features = Features({}, rows, {"words": words, "sentence_words": np.array([1, 1, 2], np.int32)})
    assert EntityProcessor.items_of_rows(None, features).tolist() == [0, 0, 0, 1, 2, 2]
