"""Vectors of texts: losses by numpy, and runs on pairs with scores, pairs without and texts alone, up to their use."""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from mindspore import Tensor
from scipy.special import log_softmax
from scipy.stats import pearsonr, spearmanr

import run_embeddings
from export import main as export
from model_utils.errors import ConfigError, DataError
from model_utils.schema import load_config
from src.albert_for_finetune import AlbertForPairs, AlbertForPairScores
from src.albert_networks import TrainingNetwork
from src.conversion.convert import ConvertConfig
from src.conversion.convert import main as convert
from src.data.feature_files import Ragged
from src.data.packing import TEXT_COLUMNS
from src.finetune_eval_model import AnsweringNetwork, EncoderOutputs, PairVectors
from src.inference.deploy_config import ExportConfig
from src.inference.exported_model import load_exported
from src.inference.record_files import NumberedRecord
from src.inference.text_search import TextSearch
from src.model_folder import ModelFolder
from src.tasks.embedding_pairs import EmbeddingsConfig, EmbeddingTask, retrieval_metrics
from src.tasks.embeddings import POOLINGS, l2_normalise, pool
from tests.helpers.answers import assert_close
from tests.helpers.classifier_run import BAD, GOOD, OTHER, SPECIALS, classifier_arguments, read, read_columns
from tests.helpers.messages import messages_of
from tests.helpers.tiny_model import KEY, TINY, outputs_and_gradients

ROWS, LENGTH = 4, 7


def columns() -> dict[str, np.ndarray]:
    """Pairs of texts of unequal lengths, interleaved by token, with scores and weights."""
    random = np.random.default_rng(3)
    lengths = random.integers(2, LENGTH + 1, (ROWS, 1, 2))
    mask = (np.arange(LENGTH)[:, None] < lengths).astype(np.int32).reshape(ROWS, -1)
    return {
        "input_ids": random.integers(5, TINY.vocab_size, mask.shape).astype(np.int32) * mask,
        "input_mask": mask,
        "segment_ids": np.zeros_like(mask),
        "label_ids": random.random(ROWS).astype(np.float32),
        "sequence_weights": np.array([0.1, 0.2, 0.3, 0.4], np.float32),
    }


CONFIG = TINY.replace(num_hidden_layers=1, initializer_range=0.3)


@pytest.fixture(scope="module")
def encoder() -> AnsweringNetwork:
    return AnsweringNetwork(EncoderOutputs(CONFIG))


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("losses", [AlbertForPairScores, AlbertForPairs])
def test_losses_are_those_of_numpy_and_all_weights_learn(
    encoder: AnsweringNetwork, losses: type[TrainingNetwork], pooling: str
) -> None:
    batch = columns()
    network = losses(PairVectors(CONFIG, pooling), seed=1)
    metrics, gradients = outputs_and_gradients(network, batch)
    silent = {name for name, value in gradients.items() if not value.any()}
    assert silent == (set() if pooling == "pooler" else {"albert.pooler.weight", "albert.pooler.bias"})

    for parameter, value in zip(encoder.scores.trainable_params(), network.trainable_params(), strict=True):
        parameter.set_data(value)
    ids, mask = (batch[name].reshape(ROWS, -1, 2).swapaxes(1, 2).reshape(2 * ROWS, -1) for name in TEXT_COLUMNS[:2])
    states, pooled = encoder(Tensor(ids), Tensor(mask), Tensor(np.zeros_like(ids)))
    tokens = Ragged(states.asnumpy()[mask == 1], mask.sum(1))
    vectors = l2_normalise(pooled.asnumpy() if pooling == "pooler" else pool(tokens, pooling))

    cosines = vectors[::2] @ vectors[1::2].T
    expected = (np.diagonal(cosines) - batch["label_ids"]) ** 2
    if losses is AlbertForPairs:
        found = AnsweringNetwork(network.scores)(*(Tensor(batch[name]) for name in TEXT_COLUMNS))
        np.testing.assert_allclose(found.asnumpy().reshape(vectors.shape), vectors, atol=2e-6)
        expected = -np.diagonal(log_softmax(20 * cosines, 1))
        assert metrics[1] == pytest.approx((cosines.argmax(1) == np.arange(ROWS)) @ batch["sequence_weights"])
    assert metrics[0] == pytest.approx(expected @ batch["sequence_weights"], rel=1e-4)


def test_a_text_differs_from_itself_by_dropout_in_training() -> None:
    texts = [Tensor(np.repeat(columns()[name][:, ::2], 2, 1)) for name in TEXT_COLUMNS]
    scores = AlbertForPairs(PairVectors(TINY.replace(hidden_dropout_prob=0.2), "mean"), seed=1).scores
    for in_training in (True, False):
        vectors = scores.set_train(in_training)(*texts, KEY).asnumpy().reshape(ROWS, 2, -1)
        assert (np.abs(vectors[:, 0] - vectors[:, 1]).max(1) > 1e-3).tolist() == [in_training] * ROWS


def test_ranks_are_counted_and_equal_cosines_share_theirs() -> None:
    first = np.eye(3, dtype=np.float32)
    second = first[[0, 0, 1]]  # the second text's own vector is another's, too, and the third's is not near
    assert retrieval_metrics(first, first, "abc") == {"mrr": 1.0, "accuracy_at_1": 1.0}
    found = retrieval_metrics(first, second, "abc")
    assert found == {"mrr": pytest.approx((1 / 1.5 + 1 / 2.5 + 1 / 2) / 3), "accuracy_at_1": 0}
    assert retrieval_metrics(*[np.ones((1500, 1))] * 2, [*map(str, range(1500))])["mrr"] == pytest.approx(1 / 750.5)


def test_a_second_text_of_several_rows_is_found_by_each() -> None:
    vectors = np.eye(2, dtype=np.float32)[[0, 0, 1, 0]]
    assert retrieval_metrics(vectors, vectors, ["a", "a", "b", "a"]) == {"mrr": 1.0, "accuracy_at_1": 1.0}
    assert retrieval_metrics(vectors[::-1], vectors, ["a", "a", "b", "a"])["mrr"] == 0.75


def write_data(folder: Path, name: str, rows: int, *names: str) -> None:
    """Pairs, scored 5 if they are about the same, else 1; without scores all are about the same."""
    random = Random(name)
    lines = ["\t".join(names)]
    for _ in range(rows):
        topic_a, topic_b = (random.choice([GOOD, BAD]) for _ in range(2))
        topics = {"text_a": topic_a, "text_b": topic_b if "label" in names else topic_a}
        fields = {key: " ".join([*random.choices(topic, k=2), *OTHER[:4]]) for key, topic in topics.items()}
        fields["label"] = "5" if topic_a is topic_b else "1"
        lines.append("\t".join(fields[name] for name in names))
    (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")


def config_of(folder: Path, **changes: Any) -> EmbeddingsConfig:
    (folder / "vocab.txt").write_text("\n".join(SPECIALS + GOOD + BAD + OTHER) + "\n")
    return load_config(EmbeddingsConfig, classifier_arguments(folder, folder / "run", **changes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embeddings")
    for name, rows in (("train", 240), ("test", 40)):
        write_data(folder, name, rows, "text_a", "text_b", "label")
    run_embeddings.main(config_of(folder, pooling="max", do_predict=True))
    return folder


def test_scores_are_learnt_and_answers_are_those_of_the_evaluation(folder: Path) -> None:
    results = read(folder / "run/eval_results.json")
    for name in ("spearman_correlation", "test_spearman_correlation"):
        assert results[name] > results["baselines"][name] + 0.2
    table = read_columns(folder / "run/predictions_test.tsv")
    scores, cosines = (np.array(table[name], float) for name in ("label", "prediction"))
    assert set(scores) == {1, 5}
    assert results["test_spearman_correlation"] == pytest.approx(spearmanr(scores, cosines).statistic, abs=1e-4)
    assert results["test_pearson_correlation"] == pytest.approx(pearsonr(scores, cosines).statistic, abs=1e-4)
    texts = zip(table["text_a"], table["text_b"], strict=True)
    records = [dict(zip(("text_a", "text_b"), pair, strict=False)) for pair in [*texts, ("a",), ("a", "dull " * 40)]]
    model = ModelFolder.load(folder / "run")
    with pytest.raises(ConfigError, match="applies to embeddings and the model's task is embedding_pairs") as error:
        model.predictor(normalise=True)
    assert (error.value.key, error.value.value) == ("normalise", True)
    answers = model.predictor().predict(records)
    assert [answer["score"] for answer in answers[:-2]] == pytest.approx(cosines, abs=1e-5)
    assert answers[-2]["error"].startswith("text_b is missing") and "set embeddings to true" in answers[-2]["error"]
    assert answers[-1]["truncated"] is True
    assert "| pooling | max |" in (folder / "run/README.md").read_text()
    run_embeddings.main(config_of(folder, pooling="max", do_predict=True))  # again: it has finished
    assert read(folder / "run/eval_results.json") == results


def test_vectors_exports_and_searches_pool_as_in_training(folder: Path, tmp_path: Path) -> None:
    model = ModelFolder.load(folder / "run")
    records = [{"text_a": text} for text in ("fine lovely film", "great fine", "poor awful plot", "dull")]
    predictor = model.predictor(embeddings=True)
    answers = predictor.predict(records)
    assert answers == model.predictor(embeddings=True, pooling="max").predict(records)
    assert answers != model.predictor(embeddings=True, pooling="mean").predict(records)
    blank = NumberedRecord(1, {"text_a": ""})  # an empty line of a text
    search = TextSearch(
        predictor, [blank, *(NumberedRecord(line, record) for line, record in enumerate(records[1:], 2))], 1
    )
    assert search.predict(records[:1])[0]["matches"][0]["record"] == records[1]
    words = ["--export_ckpt_file", str(folder / "run"), "--export_file_name", str(tmp_path / "encoder")]
    export(load_config(ExportConfig, [*words, "--export_embeddings", "true"]))
    assert_close(load_exported(tmp_path / "encoder.mindir").predict(records), answers)


def test_conversions_keep_the_pooling(folder: Path, tmp_path: Path) -> None:
    for target in ("mindspore", "hf"):
        words = ["--source", "mindspore", "--target", target, "--dtype", "float16", "--input", str(folder / "run")]
        convert(load_config(ConvertConfig, [*words, "--output", str(tmp_path / target)]))
    assert ModelFolder.load(tmp_path / "mindspore").task_info == ModelFolder.load(folder / "run").task_info
    assert read(tmp_path / "hf/config.json")["albert_mindspore"]["pooling"] == "max"
    assert read(tmp_path / "hf/config.json")["architectures"] == ["AlbertModel"]


def test_pairs_without_scores_find_each_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_data(tmp_path, "train", 160, "text_a", "text_b")
    run_embeddings.main(config_of(tmp_path))
    results = read(tmp_path / "run/eval_results.json")
    assert results["mrr"] > results["baselines"]["mrr"] and 0 <= results["accuracy_at_1"] <= results["mrr"]
    assert messages_of(caplog, f"{tmp_path}/train.tsv: pairs without scores")


def test_texts_alone_are_evaluated_by_scored_pairs(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Beside a teacher, which has no dropout."""
    write_data(tmp_path, "train", 64, "text_a")
    write_data(tmp_path, "dev", 32, "text_a", "text_b", "label")
    changes = {"teacher": folder / "run", "albert_cfg.hidden_dropout_prob": 0.1}
    run_embeddings.main(config_of(tmp_path, epoch_num=1, **changes))
    results = read(tmp_path / "run/eval_results.json")
    assert results["spearman_correlation"] != results["baselines"]["spearman_correlation"]
    assert messages_of(caplog, f"{tmp_path}/train.tsv: texts alone")


def test_columns_of_one_name_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("text\ttext\tscore\na\tb\t1\nc\td\t2\n")
    task = EmbeddingTask(config_of(tmp_path, text_a_column=1, text_b_column=2, do_eval=False), None)
    assert task.task_info.text_columns == {"text_a": "text_a", "text_b": "text_b"}


def test_scores_are_scaled_by_those_that_are_learnt(tmp_path: Path) -> None:
    rows = [f"a\tb{score}\t{score}" for score in range(20)]
    (tmp_path / "train.tsv").write_text("\n".join(["text_a\ttext_b\tscore", *rows]))
    task = EmbeddingTask(config_of(tmp_path, dev_ratio=0.8), None)
    scores = [float(pair.label) for pair in task.split("train").examples]
    assert len(scores) == 4 and (min(scores), max(scores)) == (0, 1)
    assert not {"0", "19"} <= {pair.text_b[1:] for pair in task.split("train").examples}


@pytest.mark.parametrize(
    ("table", "settings", "error", "words"),
    [
        ("text_a\ttext_b\tlabel\na\tb\t3\nc\td\t3", {}, DataError, "has the score 3 in every row of column 'label'"),
        ("text_a\ttext_b\tscore\na\tb\tgood", {}, DataError, "line 2 has the label 'good', allowed are numbers"),
        ("text_a\ttext_b\na\tb\nc\t ", {}, DataError, "line 3 has an empty text"),
        ("text_a\ttext_b\na\tb\nc\td", {"train_batch_size": 1}, ConfigError, "train_batch_size is 1, .* negatives"),
        ("text_a\na\nb", {}, ConfigError, "train.tsv has texts alone, .* give a dev_file or test_file of pairs"),
        ("text_a\na\nb", {"label_column": "stars"}, ConfigError, "label_column is 'stars', but .* has no text_b"),
        ("text_a\na\nb", {"do_eval": False}, ConfigError, "albert_cfg.hidden_dropout_prob is 0, .* set it and"),
    ],
)
def test_what_cannot_be_learnt_is_refused_before_any_work(
    tmp_path: Path, table: str, settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    (tmp_path / "train.tsv").write_text(table + "\n")
    with pytest.raises(error, match=words):
        run_embeddings.main(config_of(tmp_path, **settings))
    assert not (tmp_path / "run").exists() and not (tmp_path / "features").exists()
