"""Fine-tune with transformers, as its examples do: python -m benchmarks.transformers_finetuning.

The parts of run_glue_no_trainer.py, run_ner_no_trainer.py and run_qa_no_trainer.py that take time: tokenization of all
examples, padding to the longest row of a batch or to the maximum, AdamW with a linear decay to 0, gradients clipped,
evaluation, metrics.
"""

import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.torch_device import load_torch
from benchmarks.transformers_answers import best_answers, encode_windows
from model_utils.config import run_main
from model_utils.schema import Config, option
from src.create_squad_data import read_squad
from src.tasks.entities import OUTSIDE, all_tags, entity_scores
from src.tasks.ner_data import EntityColumns, read_sentences
from src.tasks.squad_metrics import score_answers
from src.tasks.tagged_sentences import Sentence
from src.text.text_tables import read_table

STRIDE = 128
TEXTS = {  # columns of GLUE's tables
    "sst-2": ("sentence",),
    "mrpc": ("#1 String", "#2 String"),
    "rte": ("sentence1", "sentence2"),
    "qnli": ("question", "sentence"),
}
LABELS = {task: "Quality" if task == "mrpc" else "label" for task in TEXTS}
SQUAD = "squad_v1"
NER = "ner"
IGNORED = -100  # label of a token without one, in transformers
FIRST_UPDATE = "update 1"


class TransformersConfig(Config):
    """Fine-tune with transformers: python -m benchmarks.transformers_finetuning."""

    model: str = option("", "folder that from_pretrained reads", required=True)
    task: str = option("sst-2", "fine-tuned for", choices=(*TEXTS, NER, SQUAD))
    train: str = option("", "GLUE's table, CoNLL's columns of words and tags, or SQuAD's json", required=True)
    dev: str = option("", "likewise", required=True)
    results: str = option("", "JSON file for the metrics", required=True)
    padding: str = option("longest", "of a batch, or to max_length", choices=("longest", "max_length"))
    max_length: int = option(128, "tokens of a row", minimum=8)
    batch_size: int = option(32, "rows of a batch", minimum=1)
    epoch_num: int = option(1, "epochs", minimum=1)
    learning_rate: float = option(5e-5, "at the beginning", above=0)
    seed: int = option(1, "of the head and the order of rows", minimum=0)


def train(
    config: TransformersConfig, model: Any, collate: Callable[[list[dict[str, Any]]], Any], rows: list[dict[str, Any]]
) -> None:
    """Train over rows of token ids and labels, which `collate` makes batches of."""
    import torch

    per_epoch = len(rows) // config.batch_size
    updates = config.epoch_num * per_epoch
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / updates)
    model.train()
    for update in range(updates):
        if update % per_epoch == 0:
            order = torch.randperm(len(rows)).tolist()
        first = update % per_epoch * config.batch_size
        batch = collate([rows[row] for row in order[first : first + config.batch_size]])
        optimizer.zero_grad()
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if update == 0:
            print(FIRST_UPDATE, flush=True)


def classify(config: TransformersConfig, tokenizer: Any) -> dict[str, float]:
    """Train; return the accuracy on the development set."""
    import torch
    from transformers import AutoModelForSequenceClassification

    def rows_of(file: str) -> list[dict[str, Any]]:
        table = read_table(Path(file))
        places = [table.column_index(name) for name in (*TEXTS[config.task], LABELS[config.task])]
        *texts, labels = zip(*([row[place] for place in places] for _, row in table.rows), strict=True)
        padding = config.padding == "max_length" and "max_length"
        encoded = tokenizer(*map(list, texts), truncation=True, max_length=config.max_length, padding=padding)
        names = tokenizer.model_input_names
        classes = sorted(set(labels))
        columns = zip(*(encoded[name] for name in names), map(classes.index, labels), strict=True)
        return [dict(zip((*names, "labels"), values, strict=True)) for values in columns]

    model = AutoModelForSequenceClassification.from_pretrained(config.model, num_labels=2)
    collate = partial(tokenizer.pad, return_tensors="pt")
    train(config, model, collate, rows_of(config.train))
    dev = rows_of(config.dev)
    correct = 0
    model.eval()
    for first in range(0, len(dev), config.batch_size):
        batch = collate(dev[first : first + config.batch_size])
        labels = batch.pop("labels")
        with torch.inference_mode():
            correct += int((model(**batch).logits.argmax(-1) == labels).sum())
    return {"accuracy": correct / len(dev)}


def tag_words(config: TransformersConfig, tokenizer: Any) -> dict[str, float]:
    """Train; return F1 of entities on the development set, where a word has the tag of its first token."""
    import torch
    from transformers import AutoModelForTokenClassification, DataCollatorForTokenClassification

    columns = EntityColumns(text="", name="", label="")
    train_sentences = read_sentences(Path(config.train), "columns", columns)
    dev_sentences = read_sentences(Path(config.dev), "columns", columns)
    labels = all_tags(tag for sentence in train_sentences for tag in sentence.tags or ())
    model = AutoModelForTokenClassification.from_pretrained(config.model, num_labels=len(labels))
    collate = DataCollatorForTokenClassification(tokenizer)
    train(config, model, collate, tagged_rows(config, tokenizer, train_sentences, labels))
    predicted = []
    model.eval()
    for first in range(0, len(dev_sentences), config.batch_size):
        sentences = dev_sentences[first : first + config.batch_size]
        batch = collate(tagged_rows(config, tokenizer, sentences, labels))
        is_first_token = batch.pop("labels") != IGNORED
        with torch.inference_mode():
            label_ids = model(**batch).logits.argmax(-1)
        for sentence, row, is_first in zip(sentences, label_ids, is_first_token, strict=True):
            tags = [labels[label] for label in row[is_first].tolist()]
            predicted.append(tags + [OUTSIDE] * (len(sentence.words) - len(tags)))  # words that were cut off
    return entity_scores([sentence.tags or () for sentence in dev_sentences], predicted, labels)


def tagged_rows(
    config: TransformersConfig, tokenizer: Any, sentences: Sequence[Sentence], labels: list[str]
) -> list[dict[str, Any]]:
    """Return rows of token ids and labels; only the first token of a word has a label."""
    words = [list(sentence.words) for sentence in sentences]
    padding = config.padding == "max_length" and "max_length"
    encoded = tokenizer(words, is_split_into_words=True, truncation=True, max_length=config.max_length, padding=padding)
    rows = []
    for i, sentence in enumerate(sentences):
        word_of = [None, *encoded.word_ids(i)]
        tags = sentence.tags or ()
        tokens = {name: encoded[name][i] for name in tokenizer.model_input_names}
        label_ids = [
            IGNORED if word is None or word == previous else labels.index(tags[word])
            for previous, word in itertools.pairwise(word_of)
        ]
        rows.append(tokens | {"labels": label_ids})
    return rows


def answer_questions(config: TransformersConfig, tokenizer: Any) -> dict[str, float]:
    """Train; return exact match and F1 on the development set."""
    from transformers import AutoModelForQuestionAnswering

    model = AutoModelForQuestionAnswering.from_pretrained(config.model)

    def windows_of(examples: list[Any]) -> Any:
        questions = [example.question for example in examples]
        contexts = [example.context for example in examples]
        padding = config.padding == "max_length" and "max_length"
        return encode_windows(tokenizer, questions, contexts, config.max_length, STRIDE, padding)

    examples = read_squad(Path(config.train), version_2=False)
    rows = list(answer_rows(tokenizer, windows_of(examples), examples))
    train(config, model, partial(tokenizer.pad, return_tensors="pt"), rows)
    examples = read_squad(Path(config.dev), version_2=False)
    contexts = [example.context for example in examples]
    answers = best_answers(model, tokenizer, windows_of(examples), contexts, config.batch_size)
    return score_answers(examples, {example.id: text for example, text in zip(examples, answers, strict=True)})


def answer_rows(tokenizer: Any, windows: Any, examples: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield rows with start_positions and end_positions, 0 where the answer is not in the window."""
    for window, owner in enumerate(windows["overflow_to_sample_mapping"]):
        answer = examples[owner].answers[0]
        first = answer.start
        behind = answer.start + len(answer.text)
        parts = windows.sequence_ids(window)
        offsets = windows["offset_mapping"][window]
        inside = [i for i, (start, end) in enumerate(offsets) if parts[i] == 1 and start < behind and end > first]
        is_whole = inside and offsets[inside[0]][0] <= first and offsets[inside[-1]][1] >= behind
        positions = (inside[0], inside[-1]) if is_whole else (0, 0)
        columns = {name: windows[name][window] for name in tokenizer.model_input_names}
        yield columns | {"start_positions": positions[0], "end_positions": positions[1]}


def main(config: TransformersConfig) -> None:
    """Train, evaluate, write the metrics."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # download nothing
    load_torch().manual_seed(config.seed)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(config.model)
    functions = {SQUAD: answer_questions, NER: tag_words}
    metrics = functions.get(config.task, classify)(config, tokenizer)
    Path(config.results).write_text(json.dumps(metrics), encoding="utf-8")


if __name__ == "__main__":
    run_main(main, TransformersConfig)
