"""Script that makes pre-training examples from raw text: python -m src.create_pretraining_data --help.

Text files -> documents (src/text/corpus.py) -> units of a fixed size -> worker processes, or those of a Dask
cluster: sentences, token ids, pairs of segments, masked or not, rows (src/pretraining_data/unit_maker.py) -> feature
files (src/data/record_writer.py), in the order of the text.
The random numbers of a unit depend only on random_seed and the unit's number, so the output does not depend on the
number of processes. Memory holds a few units, whatever the size of the corpus.
"""

import contextlib
import itertools
import logging
import math
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from model_utils.config import SEED, check_output_folder, run_main
from model_utils.config import TOKENS as MOST_TOKENS
from model_utils.cpu_threads import cpu_limit
from model_utils.errors import ConfigError, DataError, shorten
from model_utils.remote_files import TextFile
from model_utils.schema import option
from src.data.dask_cluster import connect
from src.data.feature_files import SUFFIX, is_complete, manifest_path, open_records, sha256_of
from src.data.mindrecord_file import HEADER_BYTES, files_needed
from src.data.record_writer import RecordWriter, check_record_path
from src.data.worker_processes import ResultsOf, results_of
from src.pretraining_data.diagnostics import VocabularyFit
from src.pretraining_data.examples import TASK
from src.pretraining_data.instances import MIN_DOCUMENT_TOKENS
from src.pretraining_data.masking import NGRAM, InstanceSettings, predictions_needed
from src.pretraining_data.unit_maker import JIEBA, PACKINGS, Document, UnitMaker, UnitResult
from src.pretraining_data.word_segmenter import load_jieba
from src.text.corpus import read_documents
from src.text.corpus_files import CorpusConfig, corpus_bytes, expand_glob
from src.tokenization import FullTokenizer, build_tokenizer
from src.utils import parse_part

logger = logging.getLogger(__name__)
UNIT_CHARACTERS = 200_000  # about 400 examples of 128 English tokens, times dupe_factor
PASSES = 100  # maximum dupe_factor: memory holds all passes of a unit
STATIC_PASSES = 5  # as in the TFRecords used to compare with google's code, whose default is 40
PACKAGES: tuple[str, ...] = ("numpy", "sentencepiece", "tokenizers")  # on whose versions examples may depend
PROCESSES = 1024  # maximum num_workers
PROCESSES_PER_CORE = 4  # each needs 200 MB
NO_EXAMPLE = (
    f"the text gives no example; needed are documents of {MIN_DOCUMENT_TOKENS} tokens or more, two of them with "
    f"random_next_sentence, and {UNIT_CHARACTERS:,} characters or more for each part"
)


class CreateDataConfig(CorpusConfig):
    """Turn raw text into pre-training examples: python -m src.create_pretraining_data."""

    config_file = "create_data_config.yaml"

    output_file: str = option("", "DIR/NAME.mindrecord of the examples", required=True)
    output_file_num: int = option(0, "output files; 0: one, and a new one whenever it is full", minimum=0, maximum=1000)
    part: str = option(
        "",
        "part to work on; i/n: make part i, from 0, of n, in DIR/NAME-i-of-n.mindrecord; src.merge_parts joins them",
    )
    vocab_file: str = option("", "WordPiece vocabulary; one token per line")
    spm_model_file: str = option("", "SentencePiece model")
    do_lower_case: bool = option(True, "lower-case the text; must agree with the vocabulary")
    masking: str = option(
        "static",
        "when masks are drawn; static: once, into the examples; dynamic: in every epoch, like the segment order of SOP",
        choices=("static", "dynamic"),
    )
    do_whole_word_mask: bool = option(True, "mask all pieces of a word together")
    word_segmenter: str = option(
        "none",
        "what finds Chinese words; to mask them whole",
        choices=("none", JIEBA),
        needs=("do_whole_word_mask", True),
    )
    segment_packing: str = option(
        "cut",
        "how segments fill an example; cut: so that neither their lengths nor ends reveal the order; google: whole "
        "sentences, as google's script packs them; segment lengths partly reveal the order",
        choices=tuple(PACKINGS),
    )
    do_permutation: bool = option(False, "also shuffle n-grams, as many as masked; like google's option")
    favor_shorter_ngram: bool = option(
        True, "mask shorter n-grams more often; p(n) is proportional to 1/n; false reverses it"
    )
    random_next_sentence: bool = option(False, "NSP instead of SOP; second segments come from other documents")
    max_seq_length: int = option(128, "tokens per row; including [CLS] and [SEP]", minimum=8, maximum=MOST_TOKENS)
    ngram: int = option(3, "longest n-gram of words to mask together", minimum=1, maximum=NGRAM)
    max_predictions_per_seq: int = option(
        0, "maximum masked tokens per example; 0: derived from masked_lm_prob", minimum=0, maximum=MOST_TOKENS
    )
    random_seed: int = option(12345, "random seed", minimum=0, maximum=SEED)
    dupe_factor: int = option(
        0,
        "passes over the text; each with different masks; 0: 5, or 1 with dynamic masks",
        minimum=0,
        maximum=PASSES,
    )
    masked_lm_prob: float = option(0.15, "share of masked tokens", above=0, below=1)
    short_seq_prob: float = option(
        0.1,
        "share of shorter examples; segment_packing google: of documents with shorter examples",
        minimum=0,
        maximum=1,
    )
    executor: str = option(
        "processes",
        "what makes the examples; without effect on the output; processes: of this machine; dask: a Dask cluster",
        choices=("processes", "dask"),
    )
    num_workers: int = option(
        0,
        "worker processes; without effect on the output; 0: one per core",
        minimum=0,
        maximum=PROCESSES,
        needs=("executor", "processes"),
    )
    scheduler: str = option("", "address of the Dask scheduler, as tcp://host:8786", needs=("executor", "dask"))
    dry_run: bool = option(
        False, "estimate time and disk space; checks everything, makes a few examples and keeps nothing"
    )

    @property
    def passes(self) -> int:
        """Number of passes over the text."""
        return self.dupe_factor or (1 if self.masking == "dynamic" else STATIC_PASSES)

    @property
    def predictions(self) -> int:
        """Maximum number of masked tokens per example."""
        return self.max_predictions_per_seq or predictions_needed(self.masked_lm_prob, self.max_seq_length)

    @property
    def part_of(self) -> tuple[int, int]:
        """Index and number of the parts; (0, 1) if the output is whole."""
        return parse_part(self.part)

    def check_together(self) -> None:
        parse_part(self.part)
        if self.masking == "dynamic" and self.passes > 1:
            raise self.error_of("dupe_factor", expected="1 or 0 with masking dynamic")
        if self.predictions >= self.max_seq_length:
            raise ConfigError(key="max_predictions_per_seq", value=self.predictions, expected="below max_seq_length")
        if self.word_segmenter == JIEBA and self.spm_model_file:
            hint = "give vocab_file, not spm_model_file"
            raise self.error_of("word_segmenter", "it needs a WordPiece vocabulary", hint=hint)
        if self.executor == "dask" and not self.scheduler:
            raise self.error_of("scheduler", hint="give its address for executor dask, as tcp://10.0.0.1:8786")


def group_documents(documents: Iterable[Document], beside: int = 0) -> Iterator[list[Document]]:
    """Yield units of documents with at least UNIT_CHARACTERS.

    Args:
        beside: minimum characters of a unit outside its longest document. A last unit with less joins the one before.
    """
    complete_unit: list[Document] = []
    unit: list[Document] = []
    size = longest = 0
    for document in documents:
        unit.append(document)
        characters = sum(map(len, document))
        size += characters
        longest = max(longest, characters)
        if size >= UNIT_CHARACTERS and size - longest >= beside:
            if complete_unit:
                yield complete_unit
            complete_unit = unit
            unit = []
            size = longest = 0
    last_units = [complete_unit, unit] if size - longest >= beside else [complete_unit + unit]
    yield from filter(None, last_units)


def build_manifest(
    config: CreateDataConfig, settings: InstanceSettings, tokenizer: FullTokenizer, files: list[TextFile]
) -> dict[str, Any]:
    """Return the manifest NAME.facts.json: everything that determines the output."""
    stored = asdict(settings)
    if config.word_segmenter == "none":  # as in data from before this key
        del stored["word_segmenter"]
    else:
        stored["word_segmenter_version"] = load_jieba().__version__
    common = Path(os.path.commonpath([file.absolute().parent for file in files]))  # some paths may be relative
    source = {
        str(file.absolute().relative_to(common)): {"bytes": file.stat().st_size, "sha256": sha256_of(file)}
        for file in files
    }
    if len(source) < len(files):
        raise DataError(f"input_file is {shorten(config.input_file)}: some URLs differ only behind a question mark")
    return {
        "task": TASK,
        "max_seq_length": settings.max_seq_length,
        "max_predictions_per_seq": settings.predictions,
        "vocab_file": tokenizer.file.name,
        "vocab_sha256": tokenizer.sha256,
        "vocab_size": tokenizer.vocab_size,
        "do_lower_case": config.do_lower_case,
        "seed": config.random_seed,
        "settings": {
            **stored,
            "dupe_factor": config.passes,
            "output_file_num": config.output_file_num,
            "text_key": config.text_key,
        },
        **({"part": config.part} if config.part else {}),
        "source": source,
    }


def part_path(path: Path, index: int, count: int) -> Path:
    """Return the path of one part of DIR/NAME.mindrecord."""
    return path.with_name(f"{path.stem}-{index}-of-{count}{SUFFIX}")


def number_of_workers(num_workers: int) -> int:
    """Return the number of workers, one per core for 0; raise ConfigError for too many for this machine."""
    cores = min(len(os.sched_getaffinity(0)), math.ceil(cpu_limit()))
    most = PROCESSES_PER_CORE * cores
    if num_workers > most:
        raise ConfigError(key="num_workers", value=num_workers, expected=f"at most {most} with {cores} core(s)")
    return num_workers or cores


def dry_run(
    maker: UnitMaker,
    units: Iterator[tuple[int, list[Document]]],
    source_bytes: int,
    workers: int,
    path: Path,
    file_num: int,
) -> str:
    """Make the examples of one unit and return an estimate of time and disk space for the whole text."""
    start = time.monotonic()
    result = maker.make(*next(units, (0, [])))
    seconds = time.monotonic() - start
    if not result.packed.rows:
        return f"dry run: {NO_EXAMPLE}. Nothing was kept."
    is_whole_text = next(units, None) is None
    logger.info(f"vocabulary: {result.fit}")
    result.fit.warn(maker.tokenizer.file.name)
    with tempfile.TemporaryDirectory() as folder:
        with RecordWriter(Path(folder) / "sample.mindrecord", maker.columns, {"task": TASK}) as writer:
            writer.write(result.packed)
        size = sum(file.stat().st_size for file in Path(folder).iterdir()) - HEADER_BYTES
    scale = 1 if is_whole_text else source_bytes / result.text_bytes
    files = files_needed(path, result.row_bytes * scale, file_num)
    sample = "all" if is_whole_text else f"the first {result.text_bytes:,}"
    return (
        f"dry run: about {len(result.packed.rows) * scale:,.0f} examples, {size * scale / 1e6 + files:,.0f} MB on disk "
        f"in {files} file(s) and {timedelta(seconds=round(seconds * scale / workers))} with {workers} process(es), "
        f"estimated from {sample} of {source_bytes:,} bytes of text. Nothing was kept."
    )


def output_path(config: CreateDataConfig) -> Path:
    """Return the path of the output or of its part; raise DataError if a part's whole is there already."""
    path = check_record_path(config.output_file)
    if config.part:
        if manifest_path(path).exists():
            raise DataError(f"{path} is there already, joined or whole: remove it, or give another output_file")
        path = check_record_path(part_path(path, *config.part_of))
    check_output_folder(path.parent, "output_file's folder")
    return path


def write_results(
    results: Iterable[UnitResult], writer: RecordWriter, tokenizer: FullTokenizer, source_bytes: int, file_num: int
) -> VocabularyFit:
    """Write the rows of all units and the counts of their tokens; return how the vocabulary fits the text."""
    documents = short_documents = 0
    token_counts = np.zeros(tokenizer.vocab_size, np.int64)
    fit = VocabularyFit()
    has_warned = False
    with tqdm(total=source_bytes, unit="B", unit_scale=True, disable=None, desc="text") as bar:
        for result in results:
            fit += result.fit
            documents += result.documents
            short_documents += result.short_documents
            has_warned = has_warned or fit.warn(tokenizer.file.name)
            if not writer.rows:  # fail before hours of work if the files would be too large
                expected_bytes = result.row_bytes * source_bytes / max(1, result.text_bytes)
                files_needed(writer.path, expected_bytes, file_num)
            writer.write(result.packed)
            token_counts += result.token_counts
            bar.update(result.text_bytes)
    writer.add_array("unigram", token_counts)
    if short_documents:
        left_out = f"{short_documents:,} of {documents:,} documents have fewer than {MIN_DOCUMENT_TOKENS} tokens"
        logger.info(f"{left_out} and are left out")
    return fit


@contextlib.contextmanager
def open_workers(config: CreateDataConfig) -> Iterator[tuple[int, ResultsOf]]:
    """Yield the number of workers, and a function that calls others on them; raises as connect."""
    if config.executor == "dask":
        packages = PACKAGES
        if config.word_segmenter == JIEBA:
            packages += (load_jieba().__name__,)
        with connect(config.scheduler, packages) as cluster:
            yield cluster.threads, cluster.results_of
    else:
        workers = number_of_workers(config.num_workers)
        yield workers, partial(results_of, workers=workers)


def main(config: CreateDataConfig) -> None:
    """Write the feature files of a configuration."""
    start = time.monotonic()
    path = output_path(config)
    files = expand_glob(config.input_file)
    tokenizer = build_tokenizer(config.vocab_file, config.spm_model_file, config.do_lower_case)
    options = {field.name: getattr(config, field.name) for field in fields(InstanceSettings)}
    settings = InstanceSettings(**options | {"max_predictions_per_seq": config.predictions})
    manifest = build_manifest(config, settings, tokenizer, files)
    if is_complete(path, manifest):
        rows = open_records(path, TASK).num_rows
        logger.info(f"{path} is complete, {rows:,} examples from this text with these settings: nothing to do")
        return
    if config.word_segmenter == JIEBA and tokenizer.added is not None:
        raise DataError(f"{tokenizer.file} has added tokens, which word_segmenter=jieba does not keep whole")
    maker = UnitMaker(tokenizer, settings, config.random_seed, config.passes)
    # With NSP a unit needs other documents, because random segments come from the same unit.
    documents = read_documents(files, config.text_key)
    all_units = enumerate(group_documents(documents, UNIT_CHARACTERS // 2 if config.random_next_sentence else 0))
    units = itertools.islice(all_units, config.part_of[0], None, config.part_of[1])
    source_bytes = corpus_bytes(files, config.text_key) // config.part_of[1]
    with contextlib.ExitStack() as open_until_written:
        workers, compute = open_until_written.enter_context(open_workers(config))
        if config.dry_run:
            logger.info(dry_run(maker, units, source_bytes, workers, path, config.output_file_num))
            return
        # The workers start before the writer, which takes seconds to load MindSpore.
        results = open_until_written.enter_context(compute(maker.make, units))
        writer = open_until_written.enter_context(RecordWriter(path, maker.columns, manifest, config.output_file_num))
        for file in tokenizer.files(tokenizer.file):
            writer.add_file(file)
        fit = write_results(results, writer, tokenizer, source_bytes, config.output_file_num)
        if not writer.rows:
            raise DataError(NO_EXAMPLE)
        writer.manifest["vocabulary_fit"] = fit.to_manifest()
    seconds = time.monotonic() - start
    logger.info(f"{path}: {writer.rows:,} examples in {seconds:.1f} s, {writer.rows / seconds:,.0f} per second")
    logger.info(f"vocabulary: {fit}")


if __name__ == "__main__":
    run_main(main, CreateDataConfig)
