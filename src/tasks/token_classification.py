"""Token classification: named entities or parts of speech, with one tag per word."""

import itertools
import logging
from collections import Counter, defaultdict
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from pydantic import BaseModel

from model_utils.errors import DataError, first_few, shorten
from model_utils.files import write_text
from model_utils.schema import option
from src.albert_config import AlbertConfig
from src.albert_for_finetune import AlbertForCrf, AlbertForTokenClassification
from src.data.feature_cache import TRAIN, Features, Split
from src.data.features import sample
from src.finetune_eval_model import CrfScores, TokenClassificationScores
from src.tasks.entities import (
    LETTER_LAST,
    OUTSIDE,
    EntitySpan,
    Scheme,
    all_tags,
    entity_metrics,
    entity_scores,
    find_entities,
    find_invalid_tags,
    find_scheme,
    mention_macro_f1,
)
from src.tasks.entity_info import EntityInfo
from src.tasks.evaluation_report import Confusion, EvaluationReport, Mark, MarkedText, wrong_rows
from src.tasks.example_files import NO_DEV_SPLIT, ExampleFiles, ExampleFilesConfig
from src.tasks.ner_data import FORMATS, EntityColumns, find_format, read_sentences
from src.tasks.prediction_table import write_prediction_table
from src.tasks.record_processor import Answer, Offset, Outputs, Probability, Record, RecordProcessor, shortest, text_of
from src.tasks.spec import EvaluationResult, PreparedSplit, RecordField, Task, TaskSpec, linear_head
from src.tasks.tag_decoding import is_scheme_followed
from src.tasks.tagged_sentences import NerSplit, Sentence, word_logits
from src.tasks.task_info import TaskInfo
from src.tasks.word_splitting import split_words, splits_characters
from src.text.text_tables import read_table
from src.text.tracked_text import trimmed_span
from src.tokenization import FullTokenizer

logger = logging.getLogger(__name__)
NAME_COLUMN, NAME_LABEL = "dish_name", "DISH"
MAX_SPARSE = 30  # labels without a scheme up to which words per label are not checked
WORDS_PER_LABEL = 5  # with more labels and fewer words per label, the column probably holds words or lemmas


class NerConfig(ExampleFilesConfig):
    """Configuration of python run_ner.py, which finds entities by tagging words."""

    config_file = "task_ner_config.yaml"

    data_format: str = option(
        "auto",
        "form of the files; columns: a word and its tag per line; lines: words, TAB, tags; names: a table of texts and "
        "entity mentions; tokens: JSON with lists of words and tags; spans: JSON with texts and labelled characters",
        choices=("auto", *FORMATS),
    )
    text_column: str = option("review", "column of the text; names: by name or number from 1; spans: key of the text")
    name_column: str = option(NAME_COLUMN, "column of an entity mention; names only; cells may be empty")
    name_label: str = option(NAME_LABEL, "label of these entities; names only")
    word_column: str = option(
        "",
        "column or key of the words; columns: by name in the header or number from 1; empty: the first one, or the "
        "second if the first has numbers or tags; tokens: key of the words",
    )
    tag_column: str = option(
        "", "column or key of the tags; columns: by name or number from 1; empty: the last one; tokens: key of the tags"
    )
    label_list: tuple[str, ...] = option(
        (), "labels in order; also the names of tags that are numbers; empty: those of the training sentences"
    )
    crf: bool = option(
        False, "conditional random field over tags; scores pairs of neighbours, too; weights to evaluate keep theirs"
    )
    mark_capitals: bool = option(
        False,
        "segment id 1 for words whose first letter is a capital; weights to evaluate keep theirs",
    )

    def check_together(self) -> None:
        super().check_together()
        if self.crf and self.teacher:
            raise self.error_of("crf", "a teacher gives probabilities of single words", hint="remove one of them")
        if self.crf and len(self.label_list) == 1:
            raise self.error_of("label_list", expected="two labels or more while crf is true")
        scheme, invalid = find_invalid_tags(self.label_list)
        if invalid:
            raise self.error_of("label_list", f"it holds {min(invalid)!r}, allowed are {scheme.value}")
        if self.word_column and self.word_column == self.tag_column:
            raise self.error_of("tag_column", "word_column is the same", hint="name two columns")
        for key, labels in (("label_list", self.label_list), ("name_label", (self.name_label,))):
            for label in labels:
                if len(label.split()) != 1 or label != label.strip():  # prediction files separate columns by spaces
                    raise self.error_of(key, f"the label {label!r} is not a word without spaces")


class NerTask(Task):
    """Task of tagging words.

    Attributes:
        training_format: format of the training file, "" if there is none.
        words_are_characters: see EntityInfo.
        reads_spans: True if a file has texts with spans.
    """

    feature_format = "token_classification"
    pairs = False
    selection = "f1"
    needs_examples = True
    config: NerConfig
    task_info: EntityInfo

    def __init__(self, config: NerConfig, tokenizer: FullTokenizer, trained_info: TaskInfo | None = None) -> None:
        super().__init__(config, tokenizer, trained_info)
        self.examples = ExampleFiles(config, cache(self._read_file), endings=None)
        self.files = self.examples.files
        self.read = self.examples.read
        splits_train_file = TRAIN in self.files and config.do_eval and "dev" not in self.files
        is_read = {TRAIN: config.do_train or splits_train_file, "dev": config.do_eval, "test": config.do_predict}
        # Several training files are an error only if one of them is read.
        has_training_file = is_read[TRAIN] or isinstance(self.files.get(TRAIN), Path)
        self._training_file = self.files[TRAIN] if TRAIN in self.files and has_training_file else None
        if config.do_train and not splits_train_file:
            config.refuse(["dev_ratio"], NO_DEV_SPLIT)
        self._columns = EntityColumns(
            config.text_column,
            config.name_column,
            config.name_label,
            config.word_column,
            config.tag_column,
            config.label_list,
        )
        self.labels = list(config.label_list or (trained_info.labels if trained_info else ()))
        self.training_format = find_format(*self._file(TRAIN)) if self._training_file else ""
        used_info = None if config.do_train else trained_info
        self.words_are_characters = isinstance(used_info, EntityInfo) and used_info.words_are_characters
        formats = {find_format(*self._file(split)) for split, used in is_read.items() if used and split in self.files}
        _check_keys(config, formats)
        self.reads_spans = "spans" in formats
        if splits_train_file:
            self.examples.hold_out(trained_info, lambda sentence: sentence.words)
        self.labels = self.labels or self._find_labels()
        self.spec = TOKEN_CLASSIFICATION
        self.task_info = self._describe(trained_info)
        if self.task_info.crf:
            self.spec = replace(TOKEN_CLASSIFICATION, losses=AlbertForCrf)
        self.words_are_characters = self.task_info.words_are_characters

    def _describe(self, trained_info: TaskInfo | None) -> EntityInfo:
        """Return the task's settings: of the training sentences or, without a training, of the weights."""
        words_are_characters = self.words_are_characters
        if self.config.do_train:
            words = (word for sentence in self.read(TRAIN) for word in sentence.words)
            # Texts are split by split_words, here as in prediction.
            words_are_characters = self.training_format not in ("names", "spans") and splits_characters(words)
            tags = (sentence.tags or () for sentence in self.read(TRAIN))
            follows_scheme = is_scheme_followed(tags, tuple(self.labels))
        else:
            follows_scheme = isinstance(trained_info, EntityInfo) and trained_info.follows_scheme
        return EntityInfo(
            task=self.spec.name,
            labels=tuple(self.labels),
            max_seq_length=self.config.max_seq_length,
            text_columns=self._text_columns(),
            dev_split=self.examples.dev_split,
            words_are_characters=words_are_characters,
            follows_scheme=follows_scheme,
            crf=self.kept_by_weights("crf"),
            mark_capitals=self.kept_by_weights("mark_capitals"),
        )

    def _text_columns(self) -> dict[str, str]:
        """Return the name of the text column in the training table; {} if the training file is no table."""
        if not self.config.do_train or self.training_format != "names":
            return {}
        return {"text": read_table(self.files[TRAIN]).key_of(self.config.text_column, "text")}

    def _find_labels(self) -> list[str]:
        """Return the tags of the whole training file; a rare one may occur in the development share alone."""
        sentences = [*self.read(TRAIN), *(self.read("dev") if self.examples.dev_split else ())]
        file = self.files[TRAIN]
        tags = [tag for sentence in sentences for tag in sentence.tags or ()]
        labels = all_tags(tags)
        if labels == [OUTSIDE]:
            raise DataError(f"{file} has no entities: all its words have the tag {OUTSIDE}")
        if len(labels) < 2:
            raise DataError(f"{file}: all words have the tag {shorten(labels[0])}; give another tag_column")
        scheme = find_scheme(labels)
        if scheme is Scheme.WORDS and len(labels) > MAX_SPARSE and len(labels) * WORDS_PER_LABEL > len(tags):
            raise DataError(
                f"{file} has {len(labels):,} tags in {len(tags):,} words, such as {first_few(labels)}: give the "
                "tag_column, or a label_list"
            )
        if scheme is Scheme.WORDS and labels[0] == OUTSIDE and all(map(LETTER_LAST.fullmatch, labels[1:])):
            logger.warning(f"{file}: tags such as {shorten(labels[1])} are no entities; write the letter first: B-PER")
        logger.info(f"{file.name}: {len(labels):,} tags ({scheme.value}): {first_few(labels, 10)}")
        return labels

    def _file(self, split: str) -> tuple[Path, str, EntityColumns, bool, Path | None]:
        """Return the file of a split, and how it is to be read."""
        return self.files[split], self.config.data_format, self._columns, split != "test", self._training_file

    def _read_file(self, split: str) -> list[Sentence]:
        return read_sentences(*self._file(split), self.labels, self.words_are_characters)

    def check_architecture(self, architecture: AlbertConfig) -> None:
        if self.task_info.mark_capitals and architecture.type_vocab_size < 2:
            raise self.config.error_of("mark_capitals", "the model has type_vocab_size 1")

    def split(self, name: str) -> NerSplit:
        sentences = sample(self.read(name), self.config.max_samples(name), self.config.seed)
        capitals = self.task_info.mark_capitals
        return NerSplit(name, sentences, self.labels, self.tokenizer, self.config.max_seq_length, capitals)

    def evaluate(self, prepared: PreparedSplit, outputs: Outputs, task_info: TaskInfo) -> EvaluationResult:
        task_info = cast(EntityInfo, task_info)
        tags = task_info.tags_of(word_logits(prepared.records.array, outputs["logits"]), outputs)
        predicted = [sentence_tags for sentence_tags, _ in tags]
        confidences = [probabilities for _, probabilities in tags]
        is_labelled = all(sentence.tags is not None for sentence in prepared.split.examples)
        metrics = self._scores(prepared.split.examples, predicted) if is_labelled else {}
        report = partial(_report, prepared.split.examples, self.labels, predicted, confidences)
        return EvaluationResult(metrics, partial(_write, prepared.split, predicted, confidences), report=report)

    def baseline(self, train: PreparedSplit, dev: PreparedSplit) -> dict[str, float]:
        """Return the metrics of each word's most frequent training tag; unseen words get O or the majority tag."""
        tag_counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for sentence in train.split.examples:
            for word, tag in zip(sentence.words, sentence.tags or (), strict=True):
                tag_counts[word][tag] += 1
        majority_tags = {word: counts.most_common(1)[0][0] for word, counts in tag_counts.items()}
        unseen_tag = OUTSIDE
        if OUTSIDE not in self.labels:
            unseen_tag = sum(tag_counts.values(), Counter()).most_common(1)[0][0]
        sentences = dev.split.examples
        predicted = [[majority_tags.get(word, unseen_tag) for word in sentence.words] for sentence in sentences]
        return self._scores(sentences, predicted)

    def _scores(self, sentences: Sequence[Sentence], predicted: list[list[str]]) -> dict[str, float]:
        """Return the metrics of entities; of texts with spans CLUENER's, too."""
        gold = [sentence.tags or () for sentence in sentences]
        metrics = entity_scores(gold, predicted, self.labels)
        if self.reads_spans:
            words = [sentence.words for sentence in sentences]
            metrics["mention_macro_f1"] = mention_macro_f1(words, gold, predicted, self.labels)
        return metrics


def _write(split: Split, predicted: list[list[str]], confidences: list[np.ndarray], folder: Path) -> None:
    """Write predictions_SPLIT.txt in conlleval's format, and predictions_SPLIT.tsv with one row per word."""
    sentences = split.examples
    blocks = []
    for sentence, tags in zip(sentences, predicted, strict=True):
        columns = [sentence.words, sentence.tags, tags] if sentence.tags else [sentence.words, tags]
        blocks.append("".join(" ".join(row) + "\n" for row in zip(*columns, strict=True)))
    write_text(folder / f"predictions_{split.name}.txt", "\n".join(blocks))
    positions = [(index, word) for index, sentence in enumerate(sentences) for word in range(len(sentence.words))]
    table: dict[str, Sequence[Any]] = {
        "index": [index for index, _ in positions],
        "file": [sentences[index].file.name for index, _ in positions],
        "line": [sentences[index].line_of(word) for index, word in positions],
        "word": [word for sentence in sentences for word in sentence.words],
    }
    if all(sentence.tags for sentence in sentences):
        table["label"] = [tag for sentence in sentences for tag in sentence.tags or ()]
    table["prediction"] = list(itertools.chain.from_iterable(predicted))
    table["probability"] = np.concatenate(confidences)
    write_prediction_table(folder, split.name, table)


def _check_keys(config: NerConfig, formats: Set[str]) -> None:
    """Raise ConfigError for keys of formats that no file has, unless they may be those of an earlier training.

    Args:
        formats: of the files that are read.
    """
    if config.do_train and not {"columns", "tokens"} & formats:
        config.refuse(["word_column", "tag_column"], "no file that is read has columns or lists of words and tags")
    if config.do_train and not {"names", "spans"} & formats:
        config.refuse(["text_column"], "no file that is read is a table of texts or has texts with spans")
    if config.do_train and "names" not in formats:
        config.refuse(["name_column", "name_label"], "no file that is read is a table of texts and names")
    if "names" in formats and config.name_label == NAME_LABEL and config.name_column != NAME_COLUMN:
        hint = f"give the label of the entities in {config.name_column}"
        raise config.error_of("name_label", f"it is the label for {NAME_COLUMN}", hint=hint)


def _report(
    sentences: Sequence[Sentence], labels: Sequence[str], predicted: list[list[str]], confidences: list[np.ndarray]
) -> EvaluationReport:
    """Return the report on the words' tags; a sentence with wrong entities counts with its most confident wrong tag."""
    gold = [sentence.tags or () for sentence in sentences]
    ids = {label: label_id for label_id, label in enumerate(labels)}
    gold_ids = np.array([ids[tag] for tags in gold for tag in tags])
    predicted_ids = np.array([ids[tag] for tags in predicted for tag in tags])
    confidence = np.concatenate(confidences)
    is_correct = gold_ids == predicted_ids
    wrong_tags = np.split(np.where(is_correct, 0, confidence), np.cumsum([*map(len, predicted)])[:-1])
    confidence_of_rows = np.array([probabilities.max(initial=0) for probabilities in wrong_tags])
    scheme = find_scheme(labels)
    gold_entities, entities = ([find_entities(tags, scheme) for tags in column] for column in (gold, predicted))
    wrong = wrong_rows(confidence_of_rows, np.array([*map(list.__eq__, gold_entities, entities)]))
    separator = "" if splits_characters(word for sentence in sentences for word in sentence.words) else " "
    errors: dict[str, Any] = {"index": wrong, "probability": confidence_of_rows[wrong], "label": [], "prediction": []}
    for row in wrong:
        words = sentences[row].words
        errors["label"].append(_marked(words, separator, gold_entities[row], entities[row], "gold"))
        errors["prediction"].append(_marked(words, separator, entities[row], gold_entities[row], "predicted"))
    classes = {label or "entity": scores for label, scores in entity_metrics(gold, predicted, labels).items()}
    confusion = Confusion(labels, gold_ids, predicted_ids)
    return EvaluationReport(confidence, is_correct, errors, classes=classes, confusion=confusion)


def _marked(
    words: Sequence[str], separator: str, entities: Sequence[EntitySpan], others: Sequence[EntitySpan], kind: str
) -> MarkedText:
    """Return a sentence with its entities marked, by `kind` where the others lack them."""
    bounds = list(itertools.accumulate((len(word) + len(separator) for word in words), initial=0))
    marks = []
    for entity in entities:
        end = bounds[entity.end] - len(separator)
        marks.append(Mark(bounds[entity.first], end, "both" if entity in others else kind, entity.label))
    return MarkedText(separator.join(words), marks)


class EntityProcessor(RecordProcessor):
    """Processor: text, or tokens if there is no text -> entities.

    Tags of the scheme WORDS become one entity per word. Offsets count characters of the text, or of the tokens joined
    by single spaces.
    """

    task_info: EntityInfo
    text_keys = ("text",)

    def parse(self, record: Record) -> tuple[str, list[tuple[int, int]]]:
        tokens = record.get("tokens")
        try:
            text = self.text(record, "text")
        except DataError:
            if self._named_columns["text"] or not isinstance(tokens, list):  # tokens do not replace a named column
                raise
        else:
            return text, self._words(text)
        if not tokens:
            raise DataError("tokens is an empty list, but must be a list of texts")
        spans = []
        start = 0
        for token in tokens:
            end = start + len(text_of({"a token": token}, "a token"))
            spans.append((start, end))
            start = end + 1
        return " ".join(tokens), spans

    def _words(self, text: str) -> list[tuple[int, int]]:
        """Return the spans of the words of a text; an added token of the vocabulary is one."""
        spans: list[tuple[int, int]] = []
        for start, end, token in self.tokenizer.segments(text):
            if token is not None:
                spans.append(trimmed_span(text, start, end))
                continue
            words = split_words(text[start:end], self.task_info.words_are_characters)
            spans += [(start + first, start + last) for first, last in words]
        return spans

    def encode(self, items: Sequence[tuple[str, list[tuple[int, int]]]]) -> Features:
        sentences = [Sentence(tuple(text[start:end] for start, end in spans)) for text, spans in items]
        task_info = self.task_info
        split = NerSplit("", sentences, task_info.labels, self.tokenizer, self.length, task_info.mark_capitals)
        return split.features()

    def items_of_rows(self, features: Features) -> np.ndarray:
        words_per_item = features.arrays["sentence_words"]
        items = np.zeros(len(features.values["input_ids"].counts), np.int64)
        items[features.arrays["words"][:, 0]] = np.repeat(np.arange(len(words_per_item)), words_per_item)
        return np.maximum.accumulate(items)  # windows within a long word are those of the item before them

    def postprocess(self, items: Sequence[Any], features: Features, outputs: Outputs) -> list[Record]:
        words = word_logits(features.arrays.__getitem__, outputs["logits"])
        rows = zip(items, self.task_info.tags_of(words, outputs), strict=True)
        return [self._answer(text, spans, *tags) for (text, spans), tags in rows]

    def _answer(self, text: str, spans: list[tuple[int, int]], tags: list[str], confidences: np.ndarray) -> Record:
        entities = []
        for label, first_word, end_word in find_entities(tags, find_scheme(self.task_info.labels)):
            start = spans[first_word][0]
            end = spans[end_word - 1][1]
            score = shortest(confidences[first_word:end_word].mean())
            entities.append({"text": text[start:end], "label": label, "start": start, "end": end, "score": score})
        return {"entities": entities}


class Entity(BaseModel):
    text: str
    label: str
    start: Offset
    end: Offset
    score: Probability


class EntitiesAnswer(Answer):
    entities: list[Entity]


TOKEN_CLASSIFICATION = TaskSpec(
    "token_classification",
    lambda architecture, task_info: (CrfScores if task_info.crf else TokenClassificationScores)(
        architecture, len(task_info.labels)
    ),
    EntityProcessor,
    {"text": RecordField(words_key="tokens")},
    EntitiesAnswer,
    linear_head("classifier", 0, "AlbertForTokenClassification"),
    EntityInfo,
    losses=AlbertForTokenClassification,
    config=NerConfig,
)
