"""HTTP application around a Predictor: POST /predict, GET /, /model, /health, /metrics and /openapi.json.

Every reply of the API is JSON, with an answer or {"error": sentence}; no request ends the server. Plain text answers
what is no HTTP, a Host that is not allowed, and connections beyond the limit.
"""

import asyncio
import contextlib
import ipaddress
import logging
import re
import signal
import socket
import tomllib
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect

from model_utils.errors import ConfigError, shorten_text
from src.inference.predictor import Predictor
from src.inference.server.batching import MicroBatcher, PredictionError, QueueFullError
from src.inference.server.limits import Limits
from src.inference.server.measurements import FILES_PATH, Metrics, measure
from src.inference.server.middleware import (
    ANY_HOST,
    accept_absolute_targets,
    answer_cancelled,
    close_when_stopping,
    default_hosts,
    error_response,
    format_host,
    limit_body,
    parse_hosts,
)
from src.inference.server.schemas import Failure, InvalidRecord, error_sentence, reply_model, request_model
from src.tasks.record_processor import Record
from src.tasks.task_info import TaskInfo

Result = TypeVar("Result")
DEFAULT_LIMITS = Limits()
PROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"
PAGE = Path(__file__).parent / "page"
LOOPBACK = "127.0.0.1"
DRAIN_TIME = 0.5  # seconds
ERROR_RESPONSES = {
    400: "the body is not JSON",
    413: "the body is too large",
    422: "the records do not fit the task",
    500: "the model failed on these records",
    503: "the queue is full, the model takes too long, or the server is stopping",
}
# Browsers load scripts and styles from this server only, and no other site may frame the page.
CONTENT_SECURITY_POLICY = "default-src 'self'; base-uri 'none'; frame-ancestors 'none'"


def create_app(
    predictor: Predictor,
    limits: Limits = DEFAULT_LIMITS,
    hosts: Collection[str] = (ANY_HOST,),
    access_log: logging.Logger | None = None,
) -> FastAPI:
    """Return the application, for any ASGI server; hosts: names that requests may use, "*": any."""
    batcher = MicroBatcher(predictor, limits)
    metrics = Metrics(predictor.task_info.task, predictor.file, limits.batch, lambda: batcher.waiting)
    batcher.on_batch = metrics.batches.observe

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        batcher.close()

    # FastAPI's documentation pages would load scripts from other sites.
    app = FastAPI(
        title=f"ALBERT: {predictor.task_info.task}",
        version=tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["version"],
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.add_middleware(limit_body, limit=limits.body)
    # A page of another site whose name is made to point at this machine (DNS rebinding) names that site as the host.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)
    app.add_middleware(close_when_stopping)
    app.add_middleware(answer_cancelled)
    app.add_middleware(measure, metrics=metrics, access_log=access_log)
    app.add_middleware(accept_absolute_targets)
    app.state.stopping = False
    _add_exception_handlers(app)
    _add_predict_route(app, predictor.task_info, batcher, limits)
    _add_info_routes(app, predictor.task_info, batcher, metrics)
    return app


def _add_predict_route(app: FastAPI, task_info: TaskInfo, batcher: MicroBatcher, limits: Limits) -> None:
    """Add POST /predict."""
    request_class: Any = request_model(task_info, limits.records, limits.characters)

    @app.post(
        "/predict",
        response_model=reply_model(task_info.task),
        responses={code: {"model": Failure, "description": text} for code, text in ERROR_RESPONSES.items()},
    )
    async def predict(request: request_class, connection: Request) -> JSONResponse:
        """Answer all records, in order; a record that cannot be answered gets an `error`."""
        connection.state.records = len(request.records)
        valid = [record for record in request.records if not isinstance(record, InvalidRecord)]
        if not valid:
            return error_response(422, request.records[0].sentence(0))
        records = [record.model_dump(exclude_none=True, exclude={"id"}, by_alias=True) for record in valid]
        try:
            async with asyncio.timeout(limits.answer_time):
                answers = await _cancel_on_disconnect(connection, batcher.answer(records))
        except ClientDisconnect:
            return error_response(503, "the client has closed the connection")  # nobody reads it
        except TimeoutError:
            timeout = f"the model did not answer within {limits.answer_time:g} seconds: try again later, or send less"
            return error_response(503, timeout, **{"Retry-After": "10"})
        connection.state.answered = sum("error" not in answer for answer in answers)
        return JSONResponse({"answers": _merge_replies(request.records, answers)})


def _add_info_routes(app: FastAPI, task_info: TaskInfo, batcher: MicroBatcher, metrics: Metrics) -> None:
    """Add GET and HEAD of /model, /health, /metrics and the page."""

    @app.get("/model")
    @app.head("/model", include_in_schema=False)
    async def model() -> dict[str, Any]:
        """Return the model's task, labels and limits."""
        return task_info.values_with_defaults()

    @app.get("/health")
    @app.head("/health", include_in_schema=False)
    async def health() -> dict[str, str | int]:
        """Return the server's status and the number of waiting records."""
        return {"status": "ok", "waiting": batcher.waiting}

    @app.get("/metrics", include_in_schema=False)
    @app.head("/metrics", include_in_schema=False)
    async def measured() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/", include_in_schema=False)
    @app.head("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html", headers={"Content-Security-Policy": CONTENT_SECURITY_POLICY})

    app.mount(FILES_PATH, StaticFiles(directory=PAGE))


def _merge_replies(records: Sequence[Any], answers: Sequence[Record]) -> list[Record]:
    """Return the replies to all records, given the answers to the valid ones; errors look as in predict.py's files."""
    remaining = iter(answers)
    replies = []
    for index, record in enumerate(records):
        answer = {"error": record.sentence(index)} if isinstance(record, InvalidRecord) else next(remaining)
        if "error" in answer:
            replies.append({"id": record.id, "line": index + 1, **answer})
        else:
            replies.append(answer if record.id is None else {"id": record.id, **answer})
    return replies


async def _cancel_on_disconnect(connection: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of `work`; cancel it and raise ClientDisconnect if the client closes the connection first."""
    result = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(connection.receive())  # the body was read, so only a disconnect can follow
    result.add_done_callback(lambda task: task.cancelled() or task.exception())  # no log of unretrieved exceptions
    try:
        await asyncio.wait((result, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise ClientDisconnect
        return result.result()
    finally:
        result.cancel()
        disconnect.cancel()


def _add_exception_handlers(app: FastAPI) -> None:
    """Make every failure of the application a reply {"error": sentence}."""

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return error_response(400 if first["type"] == "json_invalid" else 422, error_sentence(first))

    @app.exception_handler(StarletteHTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        path = shorten_text(request.url.path)
        sentences = {
            400: "the body cannot be read as JSON",
            404: f"{path} does not exist; see /openapi.json",
            405: f"{shorten_text(request.method)} is not allowed for {path}",
        }
        return error_response(
            error.status_code, sentences.get(error.status_code, str(error.detail)), **(error.headers or {})
        )

    @app.exception_handler(QueueFullError)
    async def busy(_: Request, error: QueueFullError) -> JSONResponse:
        return error_response(503, "the queue is full; try again in a moment", **{"Retry-After": "1"})

    @app.exception_handler(PredictionError)
    async def failed(_: Request, error: PredictionError) -> JSONResponse:
        return error_response(500, "the model failed on these records; the server's log says why")

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        return error_response(500, "the server failed on this request; its log says why")


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of "127.0.0.1:8000", "[::1]:8000" or "8000" (loopback only); else raise ConfigError."""
    match = re.fullmatch(r"(?:(?:\[([0-9A-Fa-f:.]+)\]|([^\s\[\]:/]+)):)?([0-9]{1,5})", text)
    if match is None or int(match[3]) > 65535:
        examples = f"{LOOPBACK}:8000, [::1]:8000 or 8000"
        expected = f"HOST:PORT or PORT with a port from 0 (any free one) to 65535, for instance {examples}"
        raise ConfigError(key="serve", value=text, expected=expected)
    return match[1] or match[2] or LOOPBACK, int(match[3])


def check_address(host: str, port: int) -> None:
    """Raise ConfigError if `serve` cannot bind to this address; cheap, for a check before loading a model."""
    _listen(host, port).close()


def serve(
    predictor: Predictor,
    host: str,
    port: int,
    limits: Limits = DEFAULT_LIMITS,
    allowed_hosts: Collection[str] = (),
    access_log: logging.Logger | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish running requests. Must be called in the main thread.

    Args:
        host: name or address to bind to.
        port: 0 takes a free one, which is printed.
        allowed_hosts: names besides the served address that requests may use, as for parse_hosts.
        access_log: of open_access_log.

    Raises:
        ConfigError: binding to the address fails, or a host has a scheme or port.
    """
    with _listen(host, port) as listener:
        address, port = listener.getsockname()[:2]
        app = create_app(predictor, limits, default_hosts(host, address) | parse_hosts(allowed_hosts), access_log)
        print(f"serving {predictor.task_info.task} on http://{format_host(address)}:{port}/ (Ctrl-C ends)", flush=True)
        if not ipaddress.ip_address(address).is_loopback:
            print("note: anyone who can reach this address can use the model; there is no password", flush=True)
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            limit_concurrency=limits.connections,
            timeout_graceful_shutdown=limits.graceful_timeout,
            log_level="warning",
            access_log=False,
            server_header=False,
        )
        server = DrainingServer(config)
        # After a graceful shutdown uvicorn raises the signal again for the previous handler: it must be harmless.
        previous = {number: signal.signal(number, server.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            server.run(sockets=[listener])
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
    print("stopped", flush=True)


class DrainingServer(uvicorn.Server):
    """Server that goes on for DRAIN_TIME when it is told to stop, so that requests already sent are answered."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app: Any = self.config.app
        app.state.stopping = True
        await asyncio.sleep(DRAIN_TIME)
        await super().shutdown(sockets)


def _listen(host: str, port: int) -> socket.socket:
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot serve on {format_host(host)}:{port}: {reason}") from error
    # Accepted connections inherit this. Without it a reply's body waits 40 ms for the acknowledgement of its head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
