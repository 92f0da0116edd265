"""What all commands share: bounds of their keys, and how a command starts and ends."""

import errno
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

from model_utils import native_code
from model_utils.errors import ConfigError, UserError, bounded
from model_utils.files import check_writable
from model_utils.messages import forgive_lost_readers, show_messages, silence
from model_utils.schema import ANY, Config, load_config, option

DEVICE_TARGETS = ("auto", "CPU", "GPU", "Ascend")
# What can be wrong with a file that the user named; other system errors keep their traceback.
FIXABLE = {
    getattr(errno, name)
    for name in """EACCES EBUSY EEXIST EFBIG EIO EISDIR ELOOP EMFILE ENAMETOOLONG ENFILE ENODEV ENOENT
    ENOTDIR ENOTEMPTY ENXIO EPERM EROFS ESTALE ETXTBSY EXDEV""".split()
}
# Upper bounds: what no run needs, so that a typing error gives a message and not a machine out of memory.
UPDATES = 100_000_000
EPOCHS = 1_000_000
ROWS = 65_536  # of a batch of one device
MICRO_BATCHES = 4096  # of an update; their rows wait in memory
DEVICES = 4096
THREADS = 4096
TOKENS = 16_384  # of an example: MindRecord's pages are to hold several of them
SEED = 2**32 - 1  # the largest that MindSpore and numpy take
LOSS_SCALE = 2.0**32
MINUTES = 60 * 24 * 366
_OUT_OF_MEMORY = re.compile(r"bad_alloc|allocate.{0,40}memory|out of memory|memory (?:is )?not enough", re.IGNORECASE)
_SIZES = ("batch_size", "batch_tokens", "seq_length")  # ends of the keys that memory depends on most
Settings = TypeVar("Settings", bound=Config)


class OneDeviceConfig(Config):
    """The device of a command."""

    device_target: str = option(
        "auto", "the device; auto takes the best one that works", choices=DEVICE_TARGETS, on_resume=ANY
    )
    device_id: int = option(0, "number of the device, counted from 0", minimum=0, maximum=DEVICES - 1, on_resume=ANY)
    threads: int = option(
        0,
        "on CPU, threads that compute; 0: OMP_NUM_THREADS, or this process's share of the cores that it may use",
        minimum=0,
        maximum=THREADS,
        on_resume=ANY,
    )


class LayersConfig(OneDeviceConfig):
    """The device of a command that computes with networks."""

    fused_layers: str = option(
        "auto",
        "on CPU, layers in C++, which this machine's compiler builds once: auto, where it has one; always; never",
        choices=native_code.USES,
        on_resume=ANY,
    )


def run_main(main: Callable[[Settings], int | None], kind: type[Settings], messages: str = "stdout") -> NoReturn:
    """Read the configuration, call main with it and exit; errors that the user can fix are one sentence, code 2.

    Messages go to the stream of that name: stderr where answers go to stdout.
    """
    show_messages(messages)
    if messages == "stderr":
        forgive_lost_readers()  # answers do not depend on messages
    config = None
    try:
        config = load_config(kind)
        config.check_required()
        code = main(config)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        print(f"error: the memory is not enough. {_memory_advice(config)}", file=sys.stderr)
        code = 2
    except KeyboardInterrupt:
        print("stopped by Ctrl-C", file=sys.stderr)
        code = 128 + signal.SIGINT
    except BrokenPipeError:  # `| head`
        silence(sys.stdout)
        print("error: nobody reads the output any more", file=sys.stderr)
        code = 2
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            print(bounded(f"error: the disk is full: {error.filename or error}"), file=sys.stderr)
        elif error.errno in FIXABLE and error.filename:
            print(bounded(f"error: {error.filename}: {error.strerror}"), file=sys.stderr)
        else:
            raise
        code = 2
    sys.exit(code or 0)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for a MemoryError, and for the errors that MindSpore raises where memory cannot be allocated."""
    return isinstance(error, MemoryError) or bool(_OUT_OF_MEMORY.search(str(error)))


def _memory_advice(config: Config | None) -> str:
    """Return a sentence that names the keys to lower, with their values."""
    sizes = {}
    if config:
        sizes = {key: getattr(config, key) for key in type(config).model_fields if key.endswith(_SIZES)}
    values = ", ".join(f"{key} ({value})" for key, value in sizes.items() if value)
    if not values:
        return "Use a machine with more, or end other programs."
    return f"It is needed for a batch of rows times their length: lower {values}."


def check_not_home(path: Path, key: str) -> None:
    """Raise ConfigError for ~/NAME, which bash hands on as it is in --key=~/NAME: it would make a folder ~ here."""
    if path.parts[:1] == ("~",):
        raise ConfigError(f"{key} is {path}, but ~ means your home to the shell alone: give the whole path")


def check_output_folder(folder: Path, key: str) -> None:
    """Before work starts: raise ConfigError if results could not be written into a folder."""
    check_not_home(folder, key)
    try:
        check_writable(folder)
    except OSError as error:
        raise ConfigError(
            f"{key} is {folder}, but nothing can be written there: {error.filename}: {error.strerror}"
        ) from error
