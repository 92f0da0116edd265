"""Write a trained network as MINDIR, AIR or ONNX, with all that its use takes, and prove that it computes the same.

NAME.mindir (.air, .onnx)   the network, for any batch and length (AIR, ONNX: of fixed ones)
NAME.model, NAME.vocab.txt  the vocabulary
NAME.json                   inputs, outputs, task, labels, lengths, thresholds, architecture, and the sha256 of both
"""

import contextlib
import errno
import importlib
import logging
import os
import timeit
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import mindspore as ms
import mindspore.onnx
import numpy as np
from mindspore import Tensor
from mindspore.train import serialization

from model_utils.config import is_out_of_memory
from model_utils.errors import CheckpointError, ConfigError, DataError
from model_utils.files import NAME_BYTES, make_readable, scratch_folder, sync_to_disk
from model_utils.json_files import write_checked
from model_utils.memory import peak_memory
from src.data.feature_files import sha256_of
from src.inference.deploy_config import AIR, MINDIR, ONNX
from src.inference.exported_model import ENCRYPTION, FORMAT_VERSION, load_mindir
from src.inference.exported_protobuf import make_reproducible, name_onnx_outputs
from src.inference.predictor import Predictor
from src.tasks import TASKS
from src.training.network_outputs import WORKING_MEMORY, rows_in_memory

logger = logging.getLogger(__name__)
TOLERANCE = 1e-5  # of an output's largest entry, or of 1 where that is smaller
FORBIDDEN = 1e20  # what is larger is no score but forbids a token, and is measured by itself alone
SCRATCH = "network"  # file's name while it is written
LARGEST = 2**31 - 2**24  # bytes of weights in a file: MindSpore and ONNX write protocol buffers of less than 2 GiB
DRY_RUN_TOKENS = 1024  # of the batch that a dry run computes; the time of a larger one is in proportion
SHAPES = (1, 9), (3, 24)  # batches and lengths that a MINDIR is tried on, besides the longest


def export_model(
    model: Predictor, name: Path, file_format: str, key: bytes | None = None, batch_size: int = 1, length: int = 0
) -> None:
    """Write the files DIR/NAME.* of a model with a portable network; older ones are replaced.

    Args:
        key: encrypt the MINDIR. batch_size, length: of AIR and ONNX; length 0: the model's max_seq_length.

    Raises:
        CheckpointError: the file that was written computes something else; nothing is left behind.
        ConfigError: the network does not take rows of this length.
        DataError: the folder cannot be written to, MindSpore cannot write the network in this format, its weights are
            too large for a file, or what checks it is not installed.
    """
    if not model.network.portable:
        raise ValueError("the network is not portable: make it with ModelFolder.predictor(portable=True)")
    fixed = _settle(model, name, file_format, batch_size, length)
    target = name.with_name(f"{name.name}.{file_format.lower()}")
    with _refusals(target), scratch_folder(target) as temporary:
        file = temporary / f"{name.name}.{file_format.lower()}"
        _write(model, file, file_format, key, fixed)
        if file_format != AIR:  # which only its runtime can load
            load = _load_onnx if file_format == ONNX else load_mindir
            difference = check(model, load(file, key), fixed)
            logger.info(f"{name.name}{file.suffix}: largest difference from the checkpoint {difference:.1e}")
        vocabulary = temporary / f"{name.name}{_vocabulary_suffix(model)}"
        vocabulary.write_bytes(model.tokenizer.content)
        description = temporary / f"{name.name}.json"
        write_checked(description, describe(model, file, vocabulary, file_format, key, fixed))
        written = file, vocabulary, description
        for path in written:
            sync_to_disk(path)
        for path in written:  # only now, so that a full disk leaves an older export whole
            path.replace(name.parent / path.name)
        sync_to_disk(name.parent)
    logger.info(f"written: {target}, {name}.json and the vocabulary")


@contextlib.contextmanager
def _refusals(target: Path) -> Iterator[None]:
    """Raise OSErrors of writing the files of an export, whose folder is made, as DataErrors."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise DataError(f"{error.filename or target} cannot be written: {error.strerror or error}") from error


def dry_run_export(model: Predictor, name: Path, file_format: str, batch_size: int = 1, length: int = 0) -> str:
    """Estimate time, memory and disk of export_model, which has the same arguments and errors, from a small batch."""
    fixed = _settle(model, name, file_format, batch_size, length)
    rows, tokens = fixed or (2, model.task_info.max_seq_length)
    texts = TASKS[model.task_info.task].texts_per_row
    few_rows = min(rows, max(1, DRY_RUN_TOKENS // (tokens * texts)))
    share = rows / few_rows
    inputs = sample_inputs(model, few_rows, tokens)
    before = peak_memory()
    first, usual = timeit.repeat(lambda: _arrays(model.network(*inputs)), repeat=2, number=1)
    size = _weights_size(model) + len(model.tokenizer.content)
    # Compiled to be written, to be compared with and as it was written; both then compute this batch and smaller ones.
    duration = 3 * max(0.0, first - usual) + 4 * usual * share
    text_memory = WORKING_MEMORY / rows_in_memory(model.architecture, tokens, model.task_info.searched_starts)
    memory = 2 * peak_memory() - before + 2 * (rows - few_rows) * texts * text_memory
    return (
        f"dry run: a batch takes {usual * share:.2f} s ({few_rows} of its {rows} rows took {first:.1f} s with "
        f"compilation and {usual:.2f} s without); writing and checking "
        f"{name}.{file_format.lower()} takes about {timedelta(seconds=round(duration))}. Memory at its peak: about "
        f"{memory / 1e9:.2f} GB. The files take about {size / 1e6:.1f} MB. Nothing was written."
    )


def _settle(model: Predictor, name: Path, file_format: str, batch_size: int, length: int) -> tuple[int, int] | None:
    """The fixed shape of a file, None for any; everything is checked that can be checked before work."""
    for suffix in (f".{file_format.lower()}", _vocabulary_suffix(model), ".json"):
        if os.path.isdir(file := f"{name}{suffix}"):
            raise DataError(f"{file} is a folder, and would have to be a file of the export; name another one")
        if (size := len(os.fsencode(f"{name.name}{suffix}"))) > NAME_BYTES:
            raise DataError(f"{file} has {size} bytes in its name, allowed are {NAME_BYTES}; choose a shorter one")
    for other in {MINDIR, AIR, ONNX} - {file_format}:
        if os.path.lexists(file := f"{name}.{other.lower()}"):
            raise DataError(f"{file} is there, which {name}.json describes: name another export, or delete the file")
    fixed = None if file_format == MINDIR else (batch_size, length or model.task_info.max_seq_length)
    least, most = model.task_info.shortest_row, model.task_info.max_seq_length
    if fixed and not least <= fixed[1] <= most:
        raise ConfigError(f"export_seq_length is {fixed[1]}, allowed for this model are {least} to {most} tokens")
    if (size := _weights_size(model)) > LARGEST:
        raise DataError(
            f"the weights take {size / 2**30:.2f} GiB, an exported file holds at most {LARGEST / 2**30:.2f}"
        )
    if file_format == ONNX:
        _onnxruntime()
    return fixed


def _weights_size(model: Predictor) -> int:
    """In bytes."""
    return sum(parameter.nbytes for parameter in model.network.get_parameters())


def _vocabulary_suffix(model: Predictor) -> str:
    return ".model" if model.tokenizer.is_sentencepiece else ".vocab.txt"


def _write(model: Predictor, file: Path, file_format: str, key: bytes | None, fixed: tuple[int, int] | None) -> None:
    network = model.network
    if fixed is None:
        inputs = network.any_inputs()
    else:
        inputs = sample_inputs(model, *fixed)
        network.set_inputs(*inputs)
    try:
        # MindSpore refuses names with a space or a Chinese letter in them, those of folders above it, too.
        with contextlib.chdir(file.parent), _in_one_file():
            if file_format == ONNX:
                # Its output_names break graphs that end in a reshape; outputs keep their order.
                ms.onnx.export(network, *inputs, file_name=SCRATCH, input_names=list(network.input_columns))
            else:
                encryption = {"enc_key": key, "enc_mode": ENCRYPTION} if key else {}
                ms.export(network, *inputs, file_name=SCRATCH, file_format=file_format, **encryption)
    except (RuntimeError, TypeError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        reason = str(error).strip().splitlines()[0]
        raise DataError(
            f"MindSpore cannot write the network of {model.task_info.task} as {file_format}: {reason}"
        ) from error
    made = file.with_name(f"{SCRATCH}.{file_format.lower()}")
    if not made.exists():
        raise OSError(errno.EIO, "MindSpore has written nothing (is the disk full?)", str(file))
    if file_format == ONNX:
        name_onnx_outputs(made, network.output_names)
    elif file_format == MINDIR and key is None:
        make_reproducible(made)
    make_readable(made)  # MindSpore lets its owner alone read it
    made.replace(file)


@contextlib.contextmanager
def _in_one_file() -> Iterator[None]:
    """MindSpore keeps weights of more than a GiB in other files than the graph, unless told otherwise."""
    before = serialization.TOTAL_SAVE
    serialization.TOTAL_SAVE = LARGEST // 1024
    try:
        yield
    finally:
        serialization.TOTAL_SAVE = before


def _onnxruntime() -> ModuleType:
    try:
        return importlib.import_module("onnxruntime")
    except ImportError:
        raise DataError(
            "an ONNX file is checked with onnxruntime, which is not installed: pip install onnxruntime"
        ) from None


def _load_onnx(file: Path, _: bytes | None) -> Callable[..., Any]:
    session = _onnxruntime().InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(*inputs: Tensor) -> list[Tensor]:
        columns = dict(zip(names, map(Tensor.asnumpy, inputs), strict=True))
        return [Tensor(output) for output in session.run(None, columns)]

    return run


def check(model: Predictor, exported: Callable[..., Any], fixed: tuple[int, int] | None) -> float:
    """The largest difference of a score between an exported network and its origin, over batches of several shapes;
    CheckpointError if it is above TOLERANCE.
    """
    longest, worst = model.task_info.max_seq_length, 0.0
    least = 2 * model.task_info.shortest_row  # sample rows are half full or more
    any_shape = [*((rows, min(max(tokens, least), longest)) for rows, tokens in SHAPES), (2, longest)]
    shapes = [fixed] if fixed else any_shape
    for batch, length in shapes:
        inputs = sample_inputs(model, batch, length)
        ours, theirs = _arrays(model.network(*inputs)), _arrays(exported(*inputs))
        if not all(np.isfinite(one).all() for one in ours):
            raise CheckpointError("the network's outputs are not finite: its weights are damaged; nothing was written")
        if [one.shape for one in ours] != [other.shape for other in theirs]:
            raise CheckpointError(
                f"what was exported computes something else: outputs of a batch of {batch} x {length} have the shapes "
                f"{[other.shape for other in theirs]}, not {[one.shape for one in ours]}; nothing was written"
            )
        for name, one, other in zip(model.network.output_names, ours, theirs, strict=True):
            sizes, differences = np.abs(one), np.abs(one - other)
            scores = sizes < FORBIDDEN
            difference = float(differences.max(initial=0.0, where=scores))
            largest = float(sizes.max(initial=1.0, where=scores))
            if not (differences <= TOLERANCE * np.maximum(largest, sizes)).all():
                raise CheckpointError(
                    f"what was exported computes something else: {name} of a batch of {batch} x {length} differs by "
                    f"{difference:.1e}; nothing was written"
                )
            worst = max(worst, difference)
    return worst


def _arrays(outputs: Any) -> list[np.ndarray]:
    outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
    return [output.asnumpy().astype(np.float64) for output in outputs]


def sample_inputs(model: Predictor, batch: int, length: int) -> list[Tensor]:
    """Random rows (batch, length) for each input, int32; all but the last one are padded."""
    random = np.random.default_rng(length)
    lengths = random.integers(max(1, length // 2), length + 1, batch)
    lengths[-1] = length
    mask = (np.arange(length) < lengths[:, None]).astype(np.int32)
    ids = random.integers(0, model.architecture.vocab_size, (batch, length)).astype(np.int32) * mask
    segments = (np.arange(length) > length // 3).astype(np.int32) * mask
    columns = {"input_ids": ids, "input_mask": mask, "segment_ids": segments, "p_mask": 1 - mask}
    columns["masked_lm_positions"] = random.integers(0, length, (batch, 2)).astype(np.int32)
    return [Tensor(columns[name]) for name in model.network.input_columns]


def describe(
    model: Predictor, file: Path, vocabulary: Path, file_format: str, key: bytes | None, fixed: tuple[int, int] | None
) -> dict[str, Any]:
    """The content of NAME.json."""
    network = model.network
    batch, length = fixed or ("batch", "length")
    masks = 2 if fixed else "masks"
    return model.task_info.completed() | {
        "format_version": FORMAT_VERSION,
        "file": file.name,
        "file_format": file_format,
        "sha256": sha256_of(file),
        "encrypted": key is not None,
        "inputs": [
            {"name": name, "dtype": "int32", "shape": [batch, masks if name == "masked_lm_positions" else length]}
            for name in network.input_columns
        ],
        "outputs": [{"name": name, "per_token": name in network.per_token_outputs} for name in network.output_names],
        "vocabulary": {"file": vocabulary.name, "sha256": model.tokenizer.sha256, "size": model.tokenizer.vocab_size},
        "do_lower_case": model.tokenizer.do_lower_case,
        "architecture": model.architecture.facts(),
        "mindspore": ms.__version__,
    }
