"""Make pre-training examples from raw text: python -m src.create_pretraining_data --help.

Text files -> documents (src/corpus.py) -> units of a fixed size -> worker processes: sentences, token ids, pairs of
segments (src/pretraining_instances.py), masks (src/masking.py), rows -> feature files (src/records.py), in the order
of the text. The random numbers of a unit depend on nothing but random_seed and the unit's number, so that the output
does not depend on the number of processes. Memory holds a few units, whatever the size of the corpus.
"""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, fields
from multiprocessing import get_context, parent_process
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from tqdm import tqdm

from model_utils.config import CreateDataConfig, run_main
from model_utils.errors import DataError, UserError
from src.corpus import expand_glob, read_documents, split_sentences
from src.masking import Settings, Vocabulary
from src.pretraining_instances import (
    SPECIAL_TOKENS,
    build_examples,
    columns,
    concatenate,
    join_documents,
    sample_pairs,
)
from src.records import PackedRows, RecordWriter, check_output_path, finished_rows, pack_rows, sha256_of
from src.tokenization import FullTokenizer, build_tokenizer

TASK = "pretrain"
UNIT_CHARACTERS = 200_000  # about 400 examples of 128 English tokens

Document = list[str]


@dataclass(frozen=True)
class UnitResult:
    """Rows of one unit of documents; token_counts (V,) int64, how often each token is predicted in them."""

    packed: PackedRows
    token_counts: np.ndarray
    text_bytes: int


class UnitMaker:
    """Turns units of documents into rows; every worker process has one."""

    def __init__(self, tokenizer: FullTokenizer, settings: Settings, seed: int, dupe_factor: int) -> None:
        self.tokenizer, self.settings, self.seed, self.dupe_factor = tokenizer, settings, seed, dupe_factor
        self.vocabulary = describe_vocabulary(tokenizer)
        self.columns = columns(settings, tokenizer.pad_id)

    def make(self, number: int, unit: list[Document]) -> UnitResult:
        """All examples of a unit, its duplicates mixed; the same ones wherever and whenever it is called."""
        max_tokens = self.settings.max_seq_length - SPECIAL_TOKENS
        documents = join_documents(self._encode(unit), self.vocabulary.word_start, max_tokens)
        parts = []
        for duplicate in range(self.dupe_factor):
            generator = np.random.default_rng([self.seed, number, duplicate])
            pairs = sample_pairs(documents, self.settings, Random(int(generator.integers(2**62))))
            if pairs:
                parts.append(build_examples(documents, pairs, self.vocabulary, self.settings, generator))
        text_bytes = sum(len(text.encode()) for document in unit for text in document)
        if not parts:
            return UnitResult(
                PackedRows([], np.zeros(0, np.int32)), np.zeros(len(self.vocabulary.word_start), int), text_bytes
            )
        rows = concatenate(parts)
        packed = pack_rows(self.columns, rows)
        order = np.random.default_rng([self.seed, number]).permutation(len(packed.rows))
        packed = PackedRows([packed.rows[index] for index in order], packed.lengths[order])
        counts = np.bincount(rows["masked_lm_ids"].values, minlength=len(self.vocabulary.word_start))
        return UnitResult(packed, counts, text_bytes)

    def _encode(self, unit: list[Document]) -> list[list[list[int]]]:
        """Token ids of the sentences of each document; sentences that have none are left out."""
        sentences = [[part for text in document for part in split_sentences(text)] for document in unit]
        encoded = iter(self.tokenizer.encode_batch(part for document in sentences for part in document))
        return [[ids for _ in document if (ids := next(encoded))] for document in sentences]


def describe_vocabulary(tokenizer: FullTokenizer) -> Vocabulary:
    """What src/masking.py needs to know of a tokenizer's vocabulary.

    Random replacement draws from all tokens but the special and control symbols, where google draws from those too: a
    [MASK] or <s> in the place of a word, or a segment that ends in its middle, is not what the 10 % are meant for.
    """
    tokens = [tokenizer.inv_vocab[index] for index in range(tokenizer.vocab_size)]
    special = [tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]
    special += [tokenizer.vocab[token] for token in ("<s>", "</s>") if token in tokenizer.vocab]
    return Vocabulary(
        word_start=np.array([tokenizer.is_word_start(token) for token in tokens]),
        replacements=np.setdiff1d(np.arange(len(tokens), dtype=np.int32), special),
        cls_id=tokenizer.cls_id,
        sep_id=tokenizer.sep_id,
        mask_id=tokenizer.mask_id,
        pad_id=tokenizer.pad_id,
    )


def group_documents(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Units of UNIT_CHARACTERS and what the last document has beyond that."""
    unit: list[Document] = []
    size = 0
    for document in documents:
        unit.append(document)
        size += sum(map(len, document))
        if size >= UNIT_CHARACTERS:
            yield unit
            unit, size = [], 0
    if unit:
        yield unit


def make_units(maker: UnitMaker, units: Iterable[list[Document]], workers: int) -> Iterator[UnitResult]:
    """The results of all units, in their order, from worker processes; few units are under way at a time.

    Raises:
        UserError: a worker process was ended from outside.
    """
    executor = ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, (maker,))
    pending: deque = deque()
    try:
        for number, unit in enumerate(units):
            pending.append(executor.submit(_make_unit, number, unit))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process ended without a result, probably for lack of memory; give a smaller num_workers"
        ) from error
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _start_worker(maker: UnitMaker) -> None:
    global _maker
    _maker = maker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker of a killed process would wait for work for ever."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _make_unit(number: int, unit: list[Document]) -> UnitResult:
    return _maker.make(number, unit)


def gather_facts(
    config: CreateDataConfig, tokenizer: FullTokenizer, settings: Settings, files: list[Path]
) -> dict[str, Any]:
    """What determines the output, for NAME.facts.json."""
    return {
        "task": TASK,
        "max_seq_length": settings.max_seq_length,
        "max_predictions_per_seq": settings.predictions,
        "vocab_file": tokenizer.file.name,
        "vocab_sha256": tokenizer.sha256,
        "vocab_size": tokenizer.vocab_size,
        "do_lower_case": config.do_lower_case,
        "seed": config.random_seed,
        "settings": {**asdict(settings), "dupe_factor": config.dupe_factor, "output_file_num": config.output_file_num},
        "source": [{"name": file.name, "bytes": file.stat().st_size, "sha256": sha256_of(file)} for file in files],
    }


def main(config: CreateDataConfig) -> None:
    """Make the feature files that the configuration asks for."""
    start = time.monotonic()
    path = check_output_path(config.output_file)
    files = expand_glob(config.input_file)
    tokenizer = build_tokenizer(config.vocab_file, config.spm_model_file, config.do_lower_case)
    settings = Settings(**{field.name: getattr(config, field.name) for field in fields(Settings)})
    facts = gather_facts(config, tokenizer, settings, files)
    rows = finished_rows(path, facts)
    if rows is not None:
        print(f"{path} is complete with {rows:,} examples of the same text and settings: nothing to do")
        return
    maker = UnitMaker(tokenizer, settings, config.random_seed, config.dupe_factor)
    units = group_documents(read_documents(files))
    results = make_units(maker, units, config.num_workers or len(os.sched_getaffinity(0)))
    token_counts = np.zeros(tokenizer.vocab_size, np.int64)
    source_bytes = sum(file.stat().st_size for file in files)
    with (
        RecordWriter(path, maker.columns, facts, config.output_file_num) as writer,
        tqdm(total=source_bytes, unit="B", unit_scale=True, disable=None, desc="text") as bar,
    ):
        for result in results:
            writer.write(result.packed)
            token_counts += result.token_counts
            bar.update(result.text_bytes)
        if not writer.rows:
            raise DataError(f"{config.input_file} gives no example: its documents have less than 16 tokens")
        writer.add_array("unigram", token_counts)
    seconds = time.monotonic() - start
    print(f"{path}: {writer.rows:,} examples in {seconds:.1f} s ({writer.rows / seconds:,.0f} a second)")


if __name__ == "__main__":
    run_main(main, CreateDataConfig)
