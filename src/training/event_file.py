"""TensorBoard event file of a run, written by the calling thread.

tensorboardX's SummaryWriter has a thread of its own, which dies silently on a full disk; the run then waits for it.
"""

import sys
import time
from pathlib import Path
from typing import Any

from model_utils.files import naming_in_errors


class EventFile:
    """New event file in a folder, which is created; every method raises OSError if it cannot be written.

    first_step: TensorBoard discards the points of earlier files in the folder from this step on.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        # tensorboardX imports torch if it is installed, which takes more than a second; None blocks the import.
        hides_torch = sys.modules.setdefault("torch", None) is None  # type: ignore[arg-type]
        try:
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto import event_pb2, summary_pb2
        finally:
            if hides_torch:
                del sys.modules["torch"]
        self._event = event_pb2.Event
        self._summary = summary_pb2.Summary
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._writer = EventsWriter(str(folder / "events"))
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._write(step=first_step, session_log=start)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Write one point of a curve."""
        self._write(step=step, summary=self._summary(value=[self._summary.Value(tag=name, simple_value=value)]))

    def _write(self, **content: Any) -> None:
        with naming_in_errors(self._folder):
            self._writer.write_event(self._event(wall_time=time.time(), **content))

    def flush(self) -> None:
        """Flush buffered points to the disk."""
        with naming_in_errors(self._folder):
            self._writer.flush()

    def close(self) -> None:
        """Flush and close the file."""
        with naming_in_errors(self._folder):
            self._writer.close()
