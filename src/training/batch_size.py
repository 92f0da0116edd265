"""Examples of an update, divided among devices and micro-batches."""

from model_utils.config import MICRO_BATCHES
from model_utils.errors import ConfigError


def divide_batch(global_batch_size: int, batch_size: int, devices: int, accumulation_steps: int) -> tuple[int, int]:
    """Return (batch_size, accumulation_steps) of a device that make global_batch_size; both as they are if it is 0.

    batch_size is the most that a device takes at once; where its share of an update is less, it takes that.
    Raises ConfigError if the examples cannot be divided so, or accumulation_steps is neither 1 nor what follows.
    """
    if not global_batch_size:
        return batch_size, accumulation_steps
    at_once = min(batch_size, max(1, global_batch_size // devices))
    steps, rest = divmod(global_batch_size, at_once * devices)
    if rest or batch_size > global_batch_size:
        multiple = f"a multiple of {at_once * devices}, which {devices} device(s) take at once"
        expected = f"{multiple}, and at least the batch size of a device, {batch_size}"
        raise ConfigError(key="global_batch_size", value=global_batch_size, expected=expected)
    if steps > MICRO_BATCHES or accumulation_steps not in (1, steps):
        found = f"batch size {at_once} x {devices} device(s) and global_batch_size {global_batch_size}"
        expected = f"at most {MICRO_BATCHES}, and {steps} with {found}"
        raise ConfigError(key="accumulation_steps", value=accumulation_steps, expected=expected)
    return at_once, steps
