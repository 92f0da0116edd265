"""Named-entity recognition, or parts of speech, by a tag for each word."""

import itertools
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel
from scipy.special import softmax

from model_utils.errors import ConfigError, DataError, first_few, shorten
from model_utils.files import write_text
from model_utils.schema import ANY, SAME_PLACE, option
from src.albert_for_finetune import AlbertForTokenClassification
from src.create_finetune_data import find_splits
from src.data.feature_cache import TRAIN, Features
from src.data.features import sample, split_off
from src.finetune_eval_model import TokenClassificationScores
from src.tasks.answerer import Answer, Answerer, Offset, Outputs, Probability, Record, shortest, text_of
from src.tasks.entities import OUTSIDE, Scheme, all_tags, entity_scores, find_entities, find_scheme, misfits
from src.tasks.finetune_config import FinetuneConfig
from src.tasks.ner_data import (
    FORMATS,
    EntityColumns,
    NerSplit,
    Sentence,
    find_format,
    read_sentences,
    split_words,
    splits_characters,
    word_logits,
)
from src.tasks.prediction_table import write_prediction_table
from src.tasks.spec import (
    EvaluationResult,
    Head,
    PreparedSplit,
    RecordField,
    Task,
    TaskSpec,
    dense_shapes,
    describe_one_answer,
)
from src.tasks.task_info import NO_DEV_SPLIT, LabelledInfo, TaskInfo, choose_dev_split
from src.text.text_tables import read_table
from src.tokenization import FullTokenizer

logger = logging.getLogger(__name__)
NAME_COLUMN, NAME_LABEL = "dish_name", "DISH"
MOST_SPARSE = 30  # labels that are no entities' and may have few words each
WORDS_A_LABEL = 5  # where there are more labels; with fewer words they are likely to be words or lemmas


class NerConfig(FinetuneConfig):
    """Find entities in texts, by a tag for each word: python run_ner.py."""

    config_file = "task_ner_config.yaml"

    train_file: str = option("", "tagged sentences; empty: train.* of data_dir", on_resume=SAME_PLACE)
    dev_file: str = option("", "likewise; where there is none, dev_ratio of the training file", on_resume=SAME_PLACE)
    test_file: str = option("", "likewise; tags are not needed", needs=("do_predict", True), on_resume=ANY)
    data_format: str = option(
        "auto",
        "columns: a word and its tag a line; lines: words, TAB, tags; names: a table of texts and entity mentions",
        choices=("auto", *FORMATS),
    )
    train_data_file_path: str = option(
        "", "features of the training sentences that are ready: DIR/NAME.mindrecord", on_resume=SAME_PLACE
    )
    eval_data_file_path: str = option("", "features of the development sentences, likewise", on_resume=SAME_PLACE)
    dev_ratio: float = option(0.1, "share split off for development", above=0, below=1)
    text_column: str = option("review", "names: column of the text, its name or its number from 1")
    name_column: str = option(NAME_COLUMN, "names: column of an entity mention in the text, or empty")
    name_label: str = option(NAME_LABEL, "names: label of these entities")
    word_column: str = option(
        "",
        "columns: column of the words, its name in the header or its number from 1; empty: the first one, or the next "
        "where that counts words",
    )
    tag_column: str = option("", "columns: column of their tags, likewise; empty: the last one")
    label_list: tuple[str, ...] = option((), "tags in their order; empty: those of the training sentences")

    def validate(self) -> None:
        super().validate()
        scheme, wrong = misfits(self.label_list)
        if wrong:
            raise ConfigError(f"label_list holds {min(wrong)!r}, allowed are {scheme.value}")
        if self.word_column and self.word_column == self.tag_column:
            raise ConfigError(f"word_column and tag_column are both {self.word_column}: name two columns")
        for key, labels in (("label_list", self.label_list), ("name_label", (self.name_label,))):
            for label in labels:
                if len(label.split()) != 1 or label != label.strip():  # columns are separated by spaces
                    raise ConfigError(f"{key} has the label {label!r}, allowed is a word without spaces")


class NerTask(Task):
    """Entities in sentences.

    Attributes:
        from_names: whether the training file is a table of texts, which are split into words here.
    """

    kind = "token_classification"
    pairs = False
    selection = "f1"
    needs_examples = True

    def __init__(self, config: NerConfig, tokenizer: FullTokenizer, known: TaskInfo | None = None) -> None:
        super().__init__(config, tokenizer, known)
        named = {TRAIN: config.train_file, "dev": config.dev_file, "test": config.test_file}
        self.files = find_splits(config.data_dir, named, endings=None)
        shared = TRAIN in self.files and config.do_eval and "dev" not in self.files
        training = self._training_file(config.do_train or shared)
        if config.do_train and not shared:
            config.refuse(["dev_ratio"], NO_DEV_SPLIT)
        columns = EntityColumns(
            config.text_column, config.name_column, config.name_label, config.word_column, config.tag_column
        )
        self.labels = list(config.label_list or (self.known.labels if self.known else ()))
        self.from_names = training is not None and find_format(training, config.data_format, columns) == "names"
        self._read_file = cache(
            lambda file, labelled: read_sentences(file, config.data_format, columns, labelled, training, self.labels)
        )
        reads = {TRAIN: config.do_train or shared, "dev": config.do_eval, "test": config.do_predict}
        read = [(split, self.files[split]) for split, wanted in reads.items() if wanted and split in self.files]
        formats = [find_format(file, config.data_format, columns, split != "test", training) for split, file in read]
        if "columns" not in formats:
            config.refuse(["word_column", "tag_column"], "no file that is read has a word in each line")
        if "names" not in formats:
            of_names = ["text_column", "name_column", "name_label"]
            config.refuse(of_names, "no file that is read is a table of texts and names")
        elif config.name_label == NAME_LABEL and config.name_column != NAME_COLUMN:
            raise ConfigError(
                f"name_label is {NAME_LABEL}, that of {NAME_COLUMN}: give the label of what stands in "
                f"{config.name_column}"
            )
        self.dev_split = None
        if shared:
            texts = (sentence.words for sentence in self.read(TRAIN))
            self.dev_split = choose_dev_split(config.dev_ratio, config.seed, known, training, texts)
        self.labels = self.labels or self._find_labels()
        self.spec = TOKEN_CLASSIFICATION
        if config.do_train:
            words = (word for sentence in self.read(TRAIN) for word in sentence.words)
            words_are_characters = not self.from_names and splits_characters(words)
        else:
            words_are_characters = isinstance(known, EntityInfo) and known.words_are_characters
        self.task_info = self.spec.info(
            task=self.spec.name,
            labels=tuple(self.labels),
            max_seq_length=config.max_seq_length,
            text_columns=self._text_columns(),
            dev_split=self.dev_split,
            words_are_characters=words_are_characters,
        )

    def _text_columns(self) -> dict[str, str]:
        """The text column's name in training, where the columns have names."""
        if not self.config.do_train or not self.from_names:
            return {}
        return {"text": read_table(self.files[TRAIN]).name_of(self.config.text_column)}

    def _find_labels(self) -> list[str]:
        """Return the tags of the whole training file: a rare one may stand in the share for development alone."""
        sentences = [*self.read(TRAIN), *(self.read("dev") if self.dev_split else ())]
        file = self.files[TRAIN]
        tags = [tag for sentence in sentences for tag in sentence.tags or ()]
        labels = all_tags(tags)
        scheme = find_scheme(labels)
        if labels == [OUTSIDE]:
            raise DataError(f"{file} has no entities: all its words have the tag {OUTSIDE}")
        if len(labels) < 2:
            raise DataError(f"{file}: all words have the tag {shorten(labels[0])}; tag_column names another column")
        if scheme is Scheme.WORDS and len(labels) > MOST_SPARSE and len(labels) * WORDS_A_LABEL > len(tags):
            raise DataError(
                f"{file} has {len(labels):,} tags in {len(tags):,} words, as {first_few(labels)}: give the tag_column, "
                "or a label_list"
            )
        logger.info(f"{file.name}: {len(labels):,} tags ({scheme.value}): {first_few(labels, 10)}")
        return labels

    def read(self, split: str) -> list[Sentence]:
        """All sentences of a split; without a development file a part of the training file is one."""
        shared = split != "test" and self.dev_split
        file = self.files.get(TRAIN if shared else split)
        if file is None:
            raise DataError(f"there are no {split} sentences: name {split}_file, or put {split}.* into data_dir")
        sentences = self._read_file(file, split != "test")
        return split_off(sentences, shared.ratio, shared.seed)[split == "dev"] if shared else sentences

    def _training_file(self, is_read: bool) -> Path | None:
        """The training file, None where there is none; or several, of which none is read."""
        try:
            return self.files.get(TRAIN)
        except DataError:
            if is_read:
                raise
            return None

    def split(self, name: str) -> NerSplit:
        sentences = sample(self.read(name), self.config.most_samples(name), self.config.seed)
        return NerSplit(name, sentences, self.labels, self.tokenizer, self.config.max_seq_length)

    def evaluate(self, prepared: PreparedSplit, outputs: Outputs, task_info: TaskInfo) -> EvaluationResult:
        sentences = prepared.split.examples
        names = np.array(self.labels)
        probabilities = [softmax(logits, 1) for logits in word_logits(prepared.records.array, outputs["logits"])]
        tags = [names[words.argmax(1)].tolist() for words in probabilities]
        gold = [sentence.tags for sentence in sentences]
        metrics = entity_scores(gold, tags, self.labels) if all(one is not None for one in gold) else {}
        sure = [words.max(1) for words in probabilities]
        collapse = ""
        if metrics and OUTSIDE not in self.labels:
            ids = [[self.labels.index(tag) for words in each for tag in words] for each in (tags, gold)]
            collapse = describe_one_answer("tag", *map(np.array, ids), self.labels)
        elif metrics and not _has_entities(tags) and _has_entities(gold):
            collapse = "no word of any sentence is an entity"
        return EvaluationResult(metrics, partial(_write, prepared.split, tags, sure), collapse=collapse)

    def baseline(self, train: PreparedSplit, dev: PreparedSplit) -> dict[str, float]:
        """For every word the tag that it has most often in training; for unseen ones O, or the most frequent tag."""
        seen: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for sentence in train.split.examples:
            for word, tag in zip(sentence.words, sentence.tags or (), strict=True):
                seen[word][tag] += 1
        usual = {word: tags.most_common(1)[0][0] for word, tags in seen.items()}
        unseen = OUTSIDE
        if OUTSIDE not in self.labels:
            unseen = sum(seen.values(), Counter()).most_common(1)[0][0]
        sentences = dev.split.examples
        guessed = [[usual.get(word, unseen) for word in sentence.words] for sentence in sentences]
        return entity_scores([sentence.tags for sentence in sentences], guessed, self.labels)


def _has_entities(sentences: Iterable[Sequence[str]]) -> bool:
    return any(tag != OUTSIDE for tags in sentences for tag in tags)


def _write(split: NerSplit, tags: list[list[str]], sure: list[np.ndarray], folder: Path) -> None:
    """predictions_SPLIT.txt as conlleval reads it: a word a line, its tag if it is known, the predicted tag; and
    predictions_SPLIT.tsv with the place of every word and `sure`, the probability of its tag.
    """
    blocks, sentences = [], split.examples
    for sentence, predicted in zip(sentences, tags, strict=True):
        columns = [sentence.words, *([sentence.tags] if sentence.tags else []), predicted]
        blocks.append("".join(" ".join(row) + "\n" for row in zip(*columns, strict=True)))
    write_text(folder / f"predictions_{split.name}.txt", "\n".join(blocks))
    words = [(number, each, word) for number, each in enumerate(sentences) for word in range(len(each.words))]
    table = {
        "index": [number for number, _, _ in words],
        "file": [each.file.name for _, each, _ in words],
        "line": [each.line_of(word) for _, each, word in words],
        "word": [each.words[word] for _, each, word in words],
    }
    if all(sentence.tags for sentence in sentences):
        table["label"] = [each.tags[word] for _, each, word in words]
    table["prediction"] = list(itertools.chain.from_iterable(tags))
    table["probability"] = np.concatenate(sure)
    write_prediction_table(folder, split.name, table)


class EntityAnswerer(Answerer):
    """text -> entities, of tags of another kind one for each word; or tokens where there is no text.

    Offsets count characters of the text, or of the tokens with single spaces between.
    """

    texts = ("text",)

    def read(self, record: Record) -> tuple[str, list[tuple[int, int]]]:
        tokens = record.get("tokens")
        try:
            text = self.text(record, "text")
        except DataError:
            if self._given["text"] or not isinstance(tokens, list):  # a column that is named is needed
                raise
        else:
            return text, split_words(text, self.task_info.words_are_characters)
        if not tokens:
            raise DataError("tokens is an empty list, needed is one of texts")
        spans, position = [], 0
        for token in tokens:
            spans.append((position, position + len(text_of({"a token": token}, "a token"))))
            position = spans[-1][1] + 1
        return " ".join(tokens), spans

    def features(self, items: Sequence[tuple[str, list[tuple[int, int]]]]) -> Features:
        sentences = [Sentence(tuple(text[start:end] for start, end in spans)) for text, spans in items]
        return NerSplit("", sentences, self.task_info.labels, self.tokenizer, self.length).features()

    def items_of_rows(self, features: Features) -> np.ndarray:
        items = super().items_of_rows(features)
        words_per_item = features.arrays["sentence_words"]
        items[features.arrays["words"][:, 0]] = np.repeat(np.arange(len(words_per_item)), words_per_item)
        return items

    def answers(self, items: Sequence[Any], features: Features, outputs: Outputs) -> list[Record]:
        words = word_logits(features.arrays.__getitem__, outputs["logits"])
        return [self._answer(*item, softmax(logits, 1)) for item, logits in zip(items, words, strict=True)]

    def _answer(self, text: str, spans: list[tuple[int, int]], probabilities: np.ndarray) -> Record:
        best, scores = probabilities.argmax(1), probabilities.max(1)
        entities = []
        labels = self.task_info.labels
        for label, first, end in find_entities([labels[index] for index in best], find_scheme(labels)):
            place = {"start": spans[first][0], "end": spans[end - 1][1]}
            score = shortest(scores[first:end].mean())
            entities.append({"text": text[place["start"] : place["end"]], "label": label, **place, "score": score})
        return {"entities": entities}


class EntityInfo(LabelledInfo):
    """words_are_characters: the training file's text was split so, as in Chinese; raw text is, too."""

    words_are_characters: bool = False


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
    lambda architecture, task_info: TokenClassificationScores(architecture, len(task_info.labels)),
    EntityAnswerer,
    {"text": RecordField()},
    EntitiesAnswer,
    Head(
        "classifier",
        0,
        (("classifier.",),),
        lambda hidden, outputs, _: dense_shapes("classifier", hidden, outputs),
        "AlbertForTokenClassification",
    ),
    EntityInfo,
    losses=AlbertForTokenClassification,
    config=NerConfig,
)
