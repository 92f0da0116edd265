"""Code shared by all commands: bounds of configuration keys, device keys, and the wrapper that runs `main`."""

import errno
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from model_utils.backend import FUSED_LAYERS_CHOICES
from model_utils.errors import ConfigError, UserError, bounded
from model_utils.files import check_writable
from model_utils.messages import forgive_lost_readers, show_messages, silence
from model_utils.schema import ANY, Config, load_config, option

DEVICE_KEYS = "device_target device_id distribute device_num seed compute_type fused_layers threads".split()
DEVICE_TARGETS = ("auto", "CPU", "GPU", "Ascend")
# Upper bounds beyond any real run, so that a typing error gives a message instead of exhausting the memory.
UPDATES = 100_000_000
EPOCHS = 1_000_000
ROWS = 65_536  # in a batch of one device
MICRO_BATCHES = 4096  # in an update; all their rows are held in memory
DEVICES = 4096
THREADS = 4096
TOKENS = 16_384  # in an example: a MindRecord page must hold several examples
SEED = 2**32 - 1  # the largest that MindSpore and numpy take
LOSS_SCALE = 2.0**32
MINUTES = 60 * 24 * 366
_OUT_OF_MEMORY = re.compile(r"bad_alloc|allocate.{0,40}memory|out of memory|memory (?:is )?not enough", re.IGNORECASE)
_SIZE_SUFFIXES = ("batch_size", "batch_tokens", "seq_length")  # of the keys that memory depends on most
_NO_MEMORY = ("global_batch_size", "export_batch_size")
Settings = TypeVar("Settings", bound=Config)


class OneDeviceConfig(Config):
    """Device keys of a command."""

    device_target: str = option(
        "auto", "device; auto: the first that works of Ascend, GPU, CPU", choices=DEVICE_TARGETS, on_resume=ANY
    )
    device_id: int = option(0, "index of the device; from 0", minimum=0, maximum=DEVICES - 1, on_resume=ANY)
    threads: int = option(
        0,
        "compute threads on CPU; 0: OMP_NUM_THREADS, or a share of the cores",
        minimum=0,
        maximum=THREADS,
        on_resume=ANY,
    )

    def device_settings(self) -> dict[str, Any]:
        """Return the arguments of model_utils.device.setup_device that this configuration has."""
        return {key: getattr(self, key) for key in DEVICE_KEYS if key in type(self).model_fields}


class LayersConfig(OneDeviceConfig):
    """Device keys of a command that runs a network."""

    fused_layers: str = option(
        "auto", "C++ layers on CPU; auto: if there is a compiler", choices=FUSED_LAYERS_CHOICES, on_resume=ANY
    )


def run_main(main: Callable[[Settings], int | None], kind: type[Settings], messages: str = "stdout") -> NoReturn:
    """Read a configuration of this class, call main with it and exit.

    Errors that the user can fix are printed as one sentence; the exit code is then 2.

    Args:
        messages: name of the stream for log messages; "stderr" if the command's output goes to stdout.
    """
    show_messages(messages)
    if messages == "stderr":
        forgive_lost_readers()  # the command's output goes to stdout and must not end with its messages
    config = None
    try:
        config = load_config(kind)
        config.check_required()
        code = main(config) or 0
    except KeyboardInterrupt:
        print("stopped by Ctrl-C", file=sys.stderr)
        code = 128 + signal.SIGINT
    except BrokenPipeError:  # `| head`
        silence(sys.stdout)
        print("error: the reader of the output has closed it", file=sys.stderr)
        code = 2
    except (UserError, OSError, MemoryError, RuntimeError) as error:
        sentence = _sentence(error, config)
        if not sentence:
            raise
        print(f"error: {bounded(sentence)}", file=sys.stderr)
        code = 2
    sys.exit(code)


def _sentence(error: Exception, config: Config | None) -> str:
    """Return a sentence about an error that the user can fix, "" for any other."""
    if isinstance(error, UserError):
        return str(error)
    if is_out_of_memory(error):
        return f"out of memory. {_memory_advice(config)}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: {error.filename or error}"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return ""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for a MemoryError, and for the errors that MindSpore raises if memory cannot be allocated."""
    return isinstance(error, MemoryError) or bool(_OUT_OF_MEMORY.search(str(error)))


def _memory_advice(config: Config | None) -> str:
    """Return a sentence that names the keys to lower, with their values."""
    sizes = {}
    if config:
        keys = [key for key in type(config).model_fields if key.endswith(_SIZE_SUFFIXES) and key not in _NO_MEMORY]
        sizes = {key: getattr(config, key) for key in keys}
    values = ", ".join(f"{key} ({value})" for key, value in sizes.items() if value)
    if not values:
        return "Use a machine with more memory, or end other programs."
    return f"Memory grows with batch size times sequence length: lower {values}."


def check_not_home(path: Path, key: str) -> None:
    """Raise ConfigError for a path that begins with ~: bash does not expand it in --key=~/NAME."""
    if path.parts[:1] == ("~",):
        raise ConfigError(key=key, value=str(path), problem="only the shell expands ~", hint="give the full path")


def check_output_folder(folder: Path, key: str) -> None:
    """Raise ConfigError if files cannot be written into a folder; called before work starts."""
    check_not_home(folder, key)
    try:
        check_writable(folder)
    except OSError as error:
        problem = f"nothing can be written there: {error.filename}: {error.strerror}"
        raise ConfigError(key=key, value=str(folder), problem=problem) from error
