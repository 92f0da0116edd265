"""TensorBoard's event file of a run: scalars, written as they come.

tensorboardX's SummaryWriter hands them to a thread. Where a disk is full that thread ends unseen, and the run then
waits without end for room in its queue; EventsWriter writes them itself and raises.
"""

import sys
import time
from pathlib import Path
from typing import Any

from model_utils.files import naming


class EventFile:
    """A new file in a folder, which is made if it is not there.

    Args:
        first_step: what earlier files of the folder have from it on does not count any more.

    Raises:
        OSError: it cannot be written, also from every method.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        # Without torch, which tensorboardX loads where it is installed, for more than a second.
        hidden = sys.modules.setdefault("torch", None) is None
        try:
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto import event_pb2, summary_pb2
        finally:
            if hidden:
                del sys.modules["torch"]
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._writer = EventsWriter(str(folder / "events"))
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._write(step=first_step, session_log=start)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """One point of a curve."""
        self._write(step=step, summary=self._summary(value=[self._summary.Value(tag=name, simple_value=value)]))

    def _write(self, **content: Any) -> None:
        with naming(self._folder):
            self._writer.write_event(self._event(wall_time=time.time(), **content))

    def flush(self) -> None:
        """Put what was added on the disk."""
        with naming(self._folder):
            self._writer.flush()

    def close(self) -> None:
        """Flush and close the file."""
        with naming(self._folder):
            self._writer.close()
