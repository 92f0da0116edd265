"""Export of a trained network as MINDIR, AIR or ONNX, checked against the original on sample batches.

NAME.mindir (.onnx, .air)   the network, for any batch size and length (AIR: fixed)
NAME.model, NAME.vocab.txt  the vocabulary; added tokens lie beside it (src/text/added_tokens.py)
NAME.json                   inputs, outputs, task, labels, lengths, thresholds, architecture, both files' sha256
"""

import contextlib
import errno
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor
from mindspore.train import mind_ir_pb2, serialization

from model_utils.config import is_out_of_memory
from model_utils.errors import CheckpointError, ConfigError, DataError, first_line
from model_utils.files import NAME_BYTES, make_readable, scratch_folder, sync_to_disk
from model_utils.json_files import write_checked
from src.data.feature_files import sha256_of
from src.inference.deploy_config import AIR, MINDIR, ONNX
from src.inference.exported_model import FORMAT_VERSION, OnnxSession, load_mindir, load_onnxruntime
from src.inference.onnx_network import write_network
from src.inference.predictor import Predictor
from src.text.added_tokens import added_tokens_file

logger = logging.getLogger(__name__)
Check = Callable[[Callable[..., Any]], None]
TOLERANCE = 1e-5  # of an output's largest entry, or of 1 where that is smaller
MASK_MAGNITUDE = 1e20  # larger values are masks, not logits: compared relative to themselves
_VARIABLES = re.compile(rb"(CNode_\d+\$)(\w+(?:\$\w+)+)")  # of one node, in the order of a set
SCRATCH = "network"  # name of the file while MindSpore writes it
MAX_WEIGHT_BYTES = 2**31 - 2**24  # bytes of weights; protocol buffers hold less than 2 GiB
CHECKED_SHAPES = (1, 9), (3, 24)  # (batch, length) that files are checked on, besides the longest


def export_model(
    model: Predictor, name: Path, file_format: str, batch_size: int = 1, length: int = 0, int8: Check | None = None
) -> None:
    """Write the files DIR/NAME.* of a model with a portable network, replacing existing ones.

    Args:
        batch_size: of AIR.
        length: of AIR; 0: the model's max_seq_length.
        int8: of ONNX: check of the quantised network. The float32 file is checked first, then an INT8 file replaces
            it, which this function checks. None: float32.

    Raises:
        CheckpointError: the outputs of the exported file differ from the model's, or int8 raises it: nothing is left.
        ConfigError: the network does not take rows of this length.
        DataError: the network cannot be written in this format, or the weights are too large for one file.
        OSError: the folder is not writable.
        UserError: onnx or onnxruntime, which write and check ONNX, is not installed.
    """
    if not model.network.portable:
        raise ValueError("the network is not portable: build it with ModelFolder.predictor(portable=True)")
    fixed_shape = _checked_shape(model, name, file_format, batch_size, length)
    target = name.with_name(f"{name.name}.{file_format.lower()}")
    onnx = write_network(model.network.scores) if file_format == ONNX else b""
    target.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(target) as temporary:
        file = temporary / f"{name.name}.{file_format.lower()}"
        if onnx:
            file.write_bytes(onnx)
        else:
            _write(model, file, file_format, fixed_shape)
        if file_format != AIR:  # only Ascend's runtime loads AIR
            load = OnnxSession if file_format == ONNX else load_mindir
            difference = check(model, load(file))
            logger.info(f"{name.name}{file.suffix}: largest difference from the checkpoint {difference:.1e}")
        if int8:
            file.write_bytes(write_network(model.network.scores, int8=True))
            int8(OnnxSession(file))
        vocabulary = temporary / f"{name.name}{_vocabulary_suffix(model)}"
        contents = model.tokenizer.files(vocabulary)
        for path, content in contents.items():
            path.write_bytes(content)
        description = temporary / f"{name.name}.json"
        write_checked(description, describe(model, file, vocabulary, file_format, fixed_shape))
        written = file, *contents, description
        for path in written:
            sync_to_disk(path)
        for path in written:  # after all are complete, so that a full disk leaves an existing export intact
            path.replace(name.parent / path.name)
        if model.tokenizer.added is None:  # an older export's would count for this one's
            added_tokens_file(name.parent / vocabulary.name).unlink(missing_ok=True)
        sync_to_disk(name.parent)
    logger.info(f"written: {target}, {name}.json and the vocabulary")


def _checked_shape(
    model: Predictor, name: Path, file_format: str, batch_size: int, length: int
) -> tuple[int, int] | None:
    """Return the fixed (batch, length) of the file, None for any, after all checks that need no computation."""
    vocabulary_suffixes = [path.name for path in model.tokenizer.files(Path(_vocabulary_suffix(model)))]
    for suffix in (f".{file_format.lower()}", *vocabulary_suffixes, ".json"):
        file = Path(f"{name}{suffix}")
        if (size := len(os.fsencode(file.name))) > NAME_BYTES:
            raise DataError(f"{file} has a name of {size} bytes, allowed are {NAME_BYTES}; choose a shorter one")
        if file.is_dir():
            raise DataError(f"{file} is a folder; choose another export_file_name")
    for other in {MINDIR, AIR, ONNX} - {file_format}:
        if os.path.lexists(other_file := f"{name}.{other.lower()}"):
            raise DataError(
                f"{other_file} exists and uses {name}.json; choose another export_file_name, or delete the file"
            )
    fixed_shape = (batch_size, length or model.task_info.max_seq_length) if file_format == AIR else None
    shortest, longest = model.task_info.shortest_row, model.task_info.max_seq_length
    if fixed_shape and not shortest <= fixed_shape[1] <= longest:
        expected = f"{shortest} to {longest} tokens for this model"
        raise ConfigError(key="export_seq_length", value=fixed_shape[1], expected=expected)
    if (size := sum(parameter.nbytes for parameter in model.network.get_parameters())) > MAX_WEIGHT_BYTES:
        raise DataError(
            f"the weights take {size / 2**30:.2f} GiB, allowed in an exported file are {MAX_WEIGHT_BYTES / 2**30:.2f}"
        )
    if file_format == ONNX:
        load_onnxruntime()
    return fixed_shape


def _vocabulary_suffix(model: Predictor) -> str:
    return ".model" if model.tokenizer.is_sentencepiece else ".vocab.txt"


def _write(model: Predictor, file: Path, file_format: str, fixed_shape: tuple[int, int] | None) -> None:
    network = model.network
    if fixed_shape is None:
        inputs = network.any_inputs()
    else:
        inputs = sample_inputs(model, *fixed_shape)
        network.set_inputs(*inputs)
    try:
        # MindSpore refuses paths with spaces or Chinese letters, also in parent folders.
        with contextlib.chdir(file.parent), _in_one_file():
            ms.export(network, *inputs, file_name=SCRATCH, file_format=file_format)
    except (RuntimeError, TypeError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        reason = first_line(error)
        raise DataError(
            f"MindSpore cannot write the network of {model.task_info.task} as {file_format}: {reason}"
        ) from error
    scratch_file = file.with_name(f"{SCRATCH}.{file_format.lower()}")
    if not scratch_file.exists():
        raise OSError(errno.EIO, "MindSpore has written nothing (is the disk full?)", str(file))
    if file_format == MINDIR:
        make_reproducible(scratch_file)
    make_readable(scratch_file)  # MindSpore makes it readable by its owner only
    scratch_file.replace(file)


def make_reproducible(mindir: Path) -> None:
    """Rewrite a MINDIR so that equal networks have equal bytes.

    Processes differ in the export phase, which holds time and address, and in the orders of primitives and of the
    variables in a node's name.
    """
    model = mind_ir_pb2.ModelProto()
    model.ParseFromString(mindir.read_bytes())
    for attribute in model.graph.attribute:
        if attribute.s.startswith(b"export.mindir."):
            attribute.s = b"export.mindir"
    model.primitives.sort(key=lambda primitive: primitive.name)  # nodes refer to them by name
    content = model.SerializeToString(deterministic=True)
    mindir.write_bytes(_VARIABLES.sub(lambda names: names[1] + b"$".join(sorted(names[2].split(b"$"))), content))


@contextlib.contextmanager
def _in_one_file() -> Iterator[None]:
    """Make MindSpore write weights of more than a GiB into the graph's file, not into separate ones."""
    before = serialization.TOTAL_SAVE
    serialization.TOTAL_SAVE = MAX_WEIGHT_BYTES // 1024
    try:
        yield
    finally:
        serialization.TOTAL_SAVE = before


def check(model: Predictor, exported: Callable[..., Any]) -> float:
    """Return the largest difference between the outputs of an exported network and the model's, over several shapes.

    Raises:
        CheckpointError: a difference is above TOLERANCE, or the model's outputs are not finite.
    """
    longest = model.task_info.max_seq_length
    shortest = 2 * model.task_info.shortest_row  # sample rows are at least half full
    shapes = [*((rows, min(max(tokens, shortest), longest)) for rows, tokens in CHECKED_SHAPES), (2, longest)]
    largest_difference = 0.0
    for batch, length in shapes:
        inputs = sample_inputs(model, batch, length)
        model_outputs = _arrays(model.network(*inputs))
        exported_outputs = _arrays(exported(*inputs))
        if not all(np.isfinite(output).all() for output in model_outputs):
            raise CheckpointError("the network's outputs are not finite: its weights are damaged; nothing was written")
        model_shapes = [output.shape for output in model_outputs]
        exported_shapes = [output.shape for output in exported_outputs]
        if model_shapes != exported_shapes:
            raise CheckpointError(
                f"the exported network computes something else: outputs of a batch of {batch} x {length} have the "
                f"shapes {exported_shapes}, not {model_shapes}; nothing was written"
            )
        for name, output, exported_output in zip(
            model.network.output_names, model_outputs, exported_outputs, strict=True
        ):
            sizes = np.abs(output)
            differences = np.abs(output - exported_output)
            is_logit = sizes < MASK_MAGNITUDE
            difference = float(differences.max(initial=0.0, where=is_logit))
            largest = float(sizes.max(initial=1.0, where=is_logit))
            if not (differences <= TOLERANCE * np.maximum(largest, sizes)).all():
                raise CheckpointError(
                    f"the exported network computes something else: {name} of a batch of {batch} x {length} differs by "
                    f"{difference:.1e}; nothing was written"
                )
            largest_difference = max(largest_difference, difference)
    return largest_difference


def _arrays(outputs: Any) -> list[np.ndarray]:
    outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
    return [output.asnumpy().astype(np.float64) for output in outputs]


def sample_inputs(model: Predictor, batch: int, length: int) -> list[Tensor]:
    """Return random rows (batch, length) int32 for each input column; all but the last row are padded."""
    random = np.random.default_rng(length)
    lengths = random.integers(max(1, length // 2), length + 1, batch)
    lengths[-1] = length
    mask = (np.arange(length) < lengths[:, None]).astype(np.int32)
    ids = random.integers(0, model.architecture.vocab_size, (batch, length)).astype(np.int32) * mask
    segments = random.integers(0, model.architecture.type_vocab_size, (batch, length)).astype(np.int32) * mask
    columns = {"input_ids": ids, "input_mask": mask, "segment_ids": segments, "p_mask": 1 - mask}
    columns["masked_lm_positions"] = random.integers(0, length, (batch, 2)).astype(np.int32)
    return [Tensor(columns[name]) for name in model.network.input_columns]


def describe(
    model: Predictor, file: Path, vocabulary: Path, file_format: str, fixed_shape: tuple[int, int] | None
) -> dict[str, Any]:
    """Return the contents of NAME.json."""
    network = model.network
    batch, length = fixed_shape or ("batch", "length")
    masks = 2 if fixed_shape else "masks"
    return model.task_info.values_with_defaults() | {
        "format_version": FORMAT_VERSION,
        "file": file.name,
        "file_format": file_format,
        "sha256": sha256_of(file),
        "inputs": [
            {"name": name, "dtype": "int32", "shape": [batch, masks if name == "masked_lm_positions" else length]}
            for name in network.input_columns
        ],
        "outputs": [{"name": name, "per_token": name in network.per_token_outputs} for name in network.output_names],
        "vocabulary": {"file": vocabulary.name, "sha256": model.tokenizer.sha256, "size": model.tokenizer.vocab_size},
        "do_lower_case": model.tokenizer.do_lower_case,
        "architecture": model.architecture.saved_dict(),
        "mindspore": ms.__version__,
    }
