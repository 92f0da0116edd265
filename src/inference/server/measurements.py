"""Measurements of a server: metrics in Prometheus' text form for GET /metrics, and the access log."""

import json
import logging
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from model_utils.config import check_not_home
from model_utils.errors import ConfigError, shorten_text
from src.data.feature_files import sha256_of

logger = logging.getLogger(__name__)
STANDARD_ERROR = "-"
FILES_PATH = "/page"  # where the files of the demo page are mounted
OTHER = "other"  # label of all paths that do not exist: clients cannot add time series
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)  # buckets; 60 is the limit of an answer
MAX_LOGGED_CHARACTERS = 200  # characters of a path or method in the access log


class Metrics:
    """Metrics of a server, its model and its process; `waiting` returns the number of records in the queue."""

    def __init__(self, task: str, file: Path | None, max_batch: int, waiting: Callable[[], int]) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter("albert_requests", "Requests.", ("path", "code"), registry=registry)
        self.seconds = Histogram("albert_request_seconds", "Seconds.", ("path",), buckets=SECONDS, registry=registry)
        self.records = Counter("albert_records", "Records of requests.", ("result",), registry=registry)
        sizes = [2**power for power in range(max_batch.bit_length())]
        self.batches = Histogram("albert_batch_records", "Records a call.", buckets=sizes, registry=registry)
        Gauge("albert_waiting_records", "Records in the queue.", registry=registry).set_function(waiting)
        model = {"task": task, "file": "", "sha256": ""}
        if file is not None:
            model["file"] = "/".join(file.parts[-2:]).encode(errors="replace").decode()
            model["sha256"] = sha256_of(file)
        Info("albert_model", "Model that answers.", registry=registry).info(model)


def path_label(scope: Scope) -> str:
    """Return the path of a request if the application has it, FILES_PATH for those below it, else OTHER."""
    path = scope["path"]
    if path.startswith(f"{FILES_PATH}/"):
        return FILES_PATH
    return path if path in {getattr(route, "path", None) for route in scope["app"].routes} else OTHER


def measure(app: ASGIApp, metrics: Metrics, access_log: logging.Logger | None) -> ASGIApp:
    """Return middleware that counts each request and writes a line of the access log.

    POST /predict leaves the number of its records, and of those it answered, in the request's state.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        start = time.perf_counter()
        state: dict[str, Any] = scope.setdefault("state", {})
        status = 500  # of an exception, which is answered outside of all middleware
        size = 0

        async def send_measured(message: Message) -> None:
            nonlocal status, size
            status = message.get("status", status)
            if scope["method"] != "HEAD":
                size += len(message.get("body", b""))
            await send(message)

        try:
            await app(scope, receive, send_measured)
        finally:
            seconds = time.perf_counter() - start
            records = state.get("records", 0)
            answered = state.get("answered", 0)
            label = path_label(scope)
            metrics.requests.labels(label, status).inc()
            metrics.seconds.labels(label).observe(seconds)
            metrics.records.labels("answered").inc(answered)
            metrics.records.labels("refused").inc(records - answered)
            if access_log:
                line = {
                    "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                    "method": shorten_text(scope["method"], MAX_LOGGED_CHARACTERS),
                    "path": shorten_text(scope["path"], MAX_LOGGED_CHARACTERS),
                    "status": status,
                    "milliseconds": round(1000 * seconds, 1),
                    "bytes": size,
                    "records": records,
                }
                access_log.info(json.dumps(line))

    return answer


class AccessLogFile(WatchedFileHandler):
    """Handler that warns once where its file cannot be written, as on a full disk; logging prints tracebacks."""

    has_failed = False

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # the file cannot be opened anew, which is no reason to fail the request
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        if not self.has_failed:
            self.has_failed = True
            logger.warning(f"{self.baseFilename} cannot be written: {sys.exc_info()[1]}; requests may be missing there")


def open_access_log(file: str) -> logging.Logger | None:
    """Return a logger to a file, "-": to standard error; None for "". Raise ConfigError if it cannot be written."""
    if not file:
        return None
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if file != STANDARD_ERROR:
        path = Path(file)
        check_not_home(path, "access_log")
        try:
            if path.exists() and not path.is_file():
                raise OSError("it is a folder, a device or a pipe")
            handler = AccessLogFile(path, encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(key="access_log", value=file, problem=f"it cannot be written: {error}") from error
    access = logging.Logger("access")  # not one of the process's loggers, whose handlers print other messages
    access.addHandler(handler)
    return access
