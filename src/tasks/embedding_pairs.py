"""Vectors of texts, learnt from pairs with scores, from pairs that belong together, or from texts alone."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from mindspore import nn

from model_utils.errors import ConfigError, DataError
from model_utils.schema import option
from src.albert_config import AlbertConfig
from src.albert_for_finetune import AlbertForPairs, AlbertForPairScores
from src.assessment_method import assess
from src.create_finetune_data import ClassificationSplit, Example, TextColumns, read_examples, score_of
from src.data.feature_cache import TRAIN, Features
from src.data.feature_files import Ragged
from src.data.features import LABELS, WINDOWS, labelled_features, sample, token_columns
from src.finetune_eval_model import EncoderOutputs, PairVectors
from src.tasks.classification import RegressionAnswer, write_text_predictions
from src.tasks.embeddings import POOLINGS, EmbeddingsInfo, EmbeddingsProcessor, l2_normalise
from src.tasks.example_files import NO_DEV_SPLIT, ExampleFiles, ExampleFilesConfig
from src.tasks.finetune_config import READY_KEYS
from src.tasks.record_processor import Outputs, Record, shortest
from src.tasks.spec import EvaluationResult, Head, PreparedSplit, RecordField, Task, TaskSpec
from src.tasks.task_info import TaskInfo
from src.text.text_tables import read_table
from src.tokenization import FullTokenizer

logger = logging.getLogger(__name__)
QUERIES_AT_ONCE = 1024  # whose cosines with all second texts are in memory together


class EmbeddingsConfig(ExampleFilesConfig):
    """Configuration of python run_embeddings.py, which fine-tunes vectors of texts."""

    config_file = "task_embeddings_config.yaml"

    text_a_column: str = option("text_a", "column of the first text; name, or number from 1")
    text_b_column: str = option("", "column of the second text; empty: text_b, if there is one, else texts alone")
    label_column: str = option("", "column of the score; empty: label or score, if there is one, else without scores")
    pooling: str = option(
        "", "how states become a vector; empty: mean, or that of the weights to evaluate", choices=("", *POOLINGS)
    )

    def check_together(self) -> None:
        super().check_together()
        self.refuse(READY_KEYS, "run_embeddings.py reads tables")


class EmbeddingTask(Task):
    """Task whose loss and metrics follow from the columns of the files.

    Attributes:
        columns: of the files that are read, by split; text_b is empty for texts alone, label for pairs without scores.
        score_range: lowest and highest training score, which become 0 and 1.
    """

    feature_format = "embedding_pairs"
    pairs = False
    config: EmbeddingsConfig

    def __init__(
        self, config: EmbeddingsConfig, tokenizer: FullTokenizer, trained_info: TaskInfo | None = None
    ) -> None:
        super().__init__(config, tokenizer, trained_info)
        self.start_metrics = {}
        self.examples = ExampleFiles(config, self._read_file)
        self.files = self.examples.files
        dev_source = "dev" if "dev" in self.files else TRAIN
        evaluated = [split for split, used in ((dev_source, config.do_eval), ("test", config.do_predict)) if used]
        self.columns = {split: self._columns(split) for split in evaluated}
        if config.do_train:
            self.columns[TRAIN] = self._columns(TRAIN)
        for split in evaluated:
            if not self.columns[split].text_b:
                found = f"{self.files[split]} has texts alone, which do not show how good vectors are"
                raise ConfigError(f"{found}: give a dev_file or test_file of pairs, or leave out do_eval or do_predict")
        if TRAIN in evaluated:
            self.examples.hold_out(trained_info, lambda pair: (pair.text_a, pair.text_b))
        elif config.do_train:
            config.refuse(["dev_ratio"], NO_DEV_SPLIT)
        self.selection = "spearman_correlation" if config.do_eval and self.columns[dev_source].label else "mrr"
        self.score_range = self._check_training() if config.do_train else None
        training_network = AlbertForPairScores if self.score_range else AlbertForPairs
        self.spec = replace(EMBEDDING_PAIRS, scores=pair_vectors, texts_per_row=2, losses=training_network)
        text_columns = {}
        if config.do_train:
            table = read_table(self.files[TRAIN])
            text_columns = {key: table.key_of(column, key) for key, column in self.columns[TRAIN].texts().items()}
        self.task_info = EmbeddingsInfo(
            task=self.spec.name,
            max_seq_length=config.max_seq_length,
            text_columns=text_columns,
            dev_split=self.examples.dev_split,
            pooling=config.pooling or getattr(trained_info, "pooling", "") or "mean",
        )

    def _columns(self, split: str) -> TextColumns:
        config = self.config
        table = read_table(self.files[split])
        text_b = config.text_b_column or ("text_b" if table.has("text_b") else "")
        label = config.label_column or next((name for name in ("label", "score") if table.has(name)), "")
        if config.label_column and not text_b:
            raise config.error_of("label_column", f"{self.files[split]} has no text_b", hint="set text_b_column")
        is_unlabelled = not text_b or (split == "test" and not table.has(label))
        return TextColumns(config.text_a_column, text_b, "" if is_unlabelled else label)

    def _read_file(self, split: str) -> list[Example]:
        """Return all examples of a file, texts alone as pairs with themselves; raise DataError for an empty text."""
        columns = self.columns[split]
        examples = read_examples(self.files[split], columns, bool(columns.label) and split != "test")
        for example in examples:
            if split != "test" and "" in (example.text_a, example.text_b)[: len(columns.texts())]:
                raise DataError(f"{example.location} has an empty text: fill it or remove the row")
        if not columns.text_b:
            examples = [replace(example, text_b=example.text_a) for example in examples]
        return examples if columns.label else [replace(example, label=None) for example in examples]

    def _check_training(self) -> tuple[float, float] | None:
        """Return score_range, None without scores; raise DataError or ConfigError if nothing can be learnt."""
        columns = self.columns[TRAIN]
        file = self.files[TRAIN]
        if not columns.label:
            learnt = "pairs without scores" if columns.text_b else "texts alone, each a pair with itself under dropout"
            logger.info(f"{file}: {learnt}; the negatives are the other rows of a batch")
            if self.config.train_batch_size == 1:
                problem = "what has no scores is learnt from negatives"
                raise self.config.error_of("train_batch_size", problem, hint="set 2 or more")
            return None
        scores = [score_of(example) for example in self._read_file(TRAIN)]
        if len({*scores}) > 1:
            scores = [score_of(example) for example in self.examples.read(TRAIN)]
        lowest, highest = min(scores), max(scores)
        if lowest == highest:
            found = f"{file} has the score {lowest:g} in every row of column {columns.label!r}"
            raise DataError(f"{found}: remove the column to learn that the pairs belong together")
        logger.info(f"{file}: pairs with scores; cosines learn {lowest:g} as 0 and {highest:g} as 1")
        return lowest, highest

    def check_architecture(self, architecture: AlbertConfig) -> None:
        """Raise ConfigError if a model without dropout is to learn from texts alone."""
        has_dropout = architecture.hidden_dropout_prob or architecture.attention_probs_dropout_prob
        if self.config.do_train and not self.columns[TRAIN].text_b and not has_dropout:
            problem = f"{self.files[TRAIN]} has texts alone, which are pairs by dropout, and the model has none"
            hint = "set it and albert_cfg.attention_probs_dropout_prob to 0.1"
            raise ConfigError(key="albert_cfg.hidden_dropout_prob", value=0, problem=problem, hint=hint)

    def split(self, name: str) -> "PairSplit":
        config = self.config
        examples = sample(self.examples.read(name), config.max_samples(name), config.seed)
        if name == TRAIN and self.score_range:  # correlations do not need the scale, and predictions show the file's
            lowest, highest = self.score_range
            scaled = [str((score_of(pair) - lowest) / (highest - lowest)) for pair in examples]
            examples = [replace(pair, label=label) for pair, label in zip(examples, scaled, strict=True)]
        return PairSplit(name, examples, None, self.tokenizer, config.max_seq_length)

    def evaluate(self, prepared: PreparedSplit, outputs: Outputs, task_info: TaskInfo) -> EvaluationResult:
        split = prepared.split
        first, second = np.split(outputs["vectors"], 2, axis=1)
        columns: dict[str, Any] = {"prediction": (first * second).sum(1)}
        metrics: dict[str, float] = {}
        if "label_ids" in prepared.records.columns:
            columns["label"] = prepared.records.array(LABELS)
            metrics = assess("spearman_correlation", columns["prediction"], columns["label"])
        elif split.name == "dev" or not any(used.label for used in self.columns.values()):
            metrics = retrieval_metrics(first, second, [pair.text_b for pair in split.examples])
        return EvaluationResult(metrics, partial(write_text_predictions, split=split, columns=columns))

    def baseline(self, train: PreparedSplit, dev: PreparedSplit) -> dict[str, float]:
        return (self.start_metrics or {}).get(dev.split.name, {})


def retrieval_metrics(first: np.ndarray, second: np.ndarray, second_texts: Sequence[str]) -> dict[str, float]:
    """Return mrr (mean reciprocal rank) and accuracy_at_1 of finding each row's second text among all distinct ones.

    Candidates are ranked by cosine; one tied with the row's own counts half.

    Args:
        first, second: L2-normalised vectors (rows, H).
        second_texts: of the rows; equal ones are one candidate, with the vector of the first of their rows.
    """
    text_ids: dict[str, int] = {}
    gold_ids = np.array([text_ids.setdefault(text, len(text_ids)) for text in second_texts])
    first_rows = np.unique(gold_ids, return_index=True)[1]
    candidates = second[first_rows]
    ranks = []
    for start in range(0, len(first), QUERIES_AT_ONCE):
        rows = slice(start, start + QUERIES_AT_ONCE)
        cosines = first[rows] @ candidates.T
        gold_cosines = np.take_along_axis(cosines, gold_ids[rows, None], 1)
        ranks.append(0.5 + (cosines > gold_cosines).sum(1) + (cosines == gold_cosines).sum(1) / 2)
    rank = np.concatenate(ranks)
    return {"mrr": float((1 / rank).mean()), "accuracy_at_1": float((rank == 1).mean())}


def pair_vectors(architecture: AlbertConfig, task_info: EmbeddingsInfo) -> nn.Cell:
    """Return the network of two vectors a row."""
    return PairVectors(architecture, task_info.pooling)


class PairSplit(ClassificationSplit):
    """Pairs of a split."""

    def features(self) -> Features:
        """Return one row per pair, in order; as ClassificationSplit.features, but with the two texts interleaved."""
        texts = [replace(pair, text_a=text, text_b="") for pair in self.examples for text in (pair.text_a, pair.text_b)]
        apart = ClassificationSplit(self.name, texts, None, self.tokenizer, self.max_seq_length).features()
        counts = apart.values["input_ids"].counts
        widths = 2 * counts.reshape(-1, 2).max(1)
        # Token t of text c goes to row_begin + 2t + c.
        begins = np.add.outer(np.cumsum(widths) - widths, np.arange(2)).ravel()
        entries = np.repeat(begins - 2 * (np.cumsum(counts) - counts), counts) + 2 * np.arange(counts.sum())
        columns = token_columns(self.tokenizer, 2 * self.max_seq_length)
        values = {name: Ragged(np.full(widths.sum(), columns[name].padding, np.int32), widths) for name in columns}
        for name in columns:
            values[name].values[entries] = apart.values[name].values
        if LABELS not in apart.arrays:
            return Features(columns, values)
        return labelled_features(columns, values, apart.arrays[LABELS][::2])


class PairProcessor(EmbeddingsProcessor):
    """Processor: text_a, text_b -> score, the cosine of their vectors."""

    text_keys: tuple[str, ...] = ("text_a", "text_b")

    def parse(self, record: Record) -> tuple[str, str]:
        text_a = self.text(record, "text_a")
        try:
            return text_a, self.text(record, "text_b")
        except DataError as error:
            raise DataError(f"{error}; for the vector of a single text set embeddings to true") from None

    def output_size(self, item: tuple[str, str]) -> int:
        return 2 * super().output_size(item)

    def encode(self, items: Sequence[tuple[str, str]]) -> Features:
        """Return two rows per item."""
        features = super().encode([(text, "") for item in items for text in item])
        truncated = features.arrays["truncated"].reshape(-1, 2).any(1)
        return replace(features, arrays={"truncated": truncated, WINDOWS: np.repeat(np.arange(len(items)), 2)})

    def postprocess(self, items: Sequence[Any], features: Features, outputs: Outputs) -> list[Record]:
        vectors = l2_normalise(self.vectors(outputs))
        return [{"score": score} for score in shortest((vectors[::2] * vectors[1::2]).sum(1))]


EMBEDDING_PAIRS = TaskSpec(
    "embedding_pairs",
    lambda architecture, _: EncoderOutputs(architecture),
    PairProcessor,
    {"text_a": RecordField(), "text_b": RecordField()},
    RegressionAnswer,
    Head("", 0, (), lambda *_: {}),  # no weights beside the backbone's
    EmbeddingsInfo,
    needed=("albert.",),
    losses=AlbertForPairScores,
    config=EmbeddingsConfig,
)
