"""The HTTP application around a Predictor: POST /predict, GET /, /model, /health and /openapi.json.

Whatever arrives for them, the reply is JSON with an answer or {"error": sentence}, and the server lives on.
"""

import asyncio
import contextlib
import ipaddress
import re
import signal
import socket
import tomllib
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from model_utils.errors import ConfigError, shorten_text
from src.inference.predictor import Predictor
from src.inference.server.batching import MicroBatcher, PredictionError, QueueFullError
from src.inference.server.connection import DrainingServer, TimedConnection
from src.inference.server.limits import Limits
from src.inference.server.middleware import (
    ANY_HOST,
    AllowedHosts,
    BodyLimit,
    GracefulClose,
    failure,
    hosts_of,
    parse_hosts,
)
from src.inference.server.schemas import Failure, InvalidRecord, reply_model, request_model, sentence
from src.tasks.answerer import Record

Result = TypeVar("Result")
DEFAULT_LIMITS = Limits()
PROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"
PAGE = Path(__file__).parent / "page"
LOOPBACK = "127.0.0.1"
FAILURES = {
    400: "the body is no JSON",
    408: "the request did not arrive in time",
    413: "the body is too large",
    421: "the request names another host",
    422: "the records are not what the task needs",
    500: "the model failed on these records",
    503: "too many records wait already, the model takes too long, or the server is stopping",
}
# The page is all that a browser may load, and no other site may frame it.
CONTENT_SECURITY_POLICY = "default-src 'self'; base-uri 'none'; frame-ancestors 'none'"


def create_app(predictor: Predictor, limits: Limits = DEFAULT_LIMITS, hosts: Collection[str] = (ANY_HOST,)) -> FastAPI:
    """The application, for any ASGI server; hosts: that requests may name (AllowedHosts)."""
    task_info = predictor.task_info
    requests = request_model(task_info, limits.records, limits.characters)
    batcher = MicroBatcher(predictor, limits.batch, limits.batch_characters, limits.waiting, limits.window)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        batcher.close()

    # FastAPI's own pages of documentation load scripts from other sites; the description itself is /openapi.json.
    app = FastAPI(
        title=f"ALBERT: {task_info.task}",
        version=tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["version"],
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.add_middleware(BodyLimit, limit=limits.body)
    app.add_middleware(AllowedHosts, names=hosts)
    app.add_middleware(GracefulClose)
    _answer_failures(app)

    @app.post(
        "/predict",
        response_model=reply_model(task_info.task),
        responses={code: {"model": Failure, "description": text} for code, text in FAILURES.items()},
    )
    async def predict(request: requests, connection: Request) -> JSONResponse:
        """Answer every record, in order; one that cannot be answered gets an `error`."""
        valid = [record for record in request.records if not isinstance(record, InvalidRecord)]
        if not valid:
            return failure(422, request.records[0].sentence(0))
        records = [record.model_dump(exclude_none=True, exclude={"id"}, by_alias=True) for record in valid]
        try:
            async with asyncio.timeout(limits.answer_time):
                answers = await _unless_gone(connection, batcher.answer(records))
        except ClientDisconnect:
            return failure(503, "the client has closed the connection")  # which nobody reads
        except TimeoutError:
            late = f"the model did not answer within {limits.answer_time:g} seconds: try again later, or send less"
            return failure(503, late, **{"Retry-After": "10"})
        return JSONResponse({"answers": _merged(request.records, answers)})

    @app.get("/model")
    @app.head("/model", include_in_schema=False)
    async def model() -> dict[str, Any]:
        """What is known of the model."""
        return task_info.completed()

    @app.get("/health")
    @app.head("/health", include_in_schema=False)
    async def health() -> dict[str, str | int]:
        """That the server lives, and how many records wait for the model."""
        return {"status": "ok", "waiting": batcher.waiting}

    @app.get("/", include_in_schema=False)
    @app.head("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html", headers={"Content-Security-Policy": CONTENT_SECURITY_POLICY})

    app.mount("/page", StaticFiles(directory=PAGE))
    return app


def _merged(records: Sequence[Any], answers: Sequence[Record]) -> list[Record]:
    """Return the replies to all records, of the answers to those that are valid; errors as in predict.py's files."""
    remaining = iter(answers)
    replies = []
    for index, record in enumerate(records):
        answer = {"error": record.sentence(index)} if isinstance(record, InvalidRecord) else next(remaining)
        if "error" in answer:
            replies.append({"id": record.id, "line": index + 1, **answer})
        else:
            replies.append(answer if record.id is None else {"id": record.id, **answer})
    return replies


async def _unless_gone(connection: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """What `work` comes to; where the client closes the connection before, work is cancelled: ClientDisconnect."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(connection.receive())  # the body is read
    working.add_done_callback(lambda task: task.cancelled() or task.exception())  # which nobody may ask for
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


def _answer_failures(app: FastAPI) -> None:
    """Every failure is {"error": sentence}."""

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return failure(400 if first["type"] == "json_invalid" else 422, sentence(first))

    @app.exception_handler(StarletteHTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        path = shorten_text(request.url.path)
        known = {
            400: "the body cannot be read as JSON",
            404: f"there is no {path}; /openapi.json says what there is",
            405: f"{shorten_text(request.method)} is not allowed for {path}",
        }
        return failure(error.status_code, known.get(error.status_code, str(error.detail)), **(error.headers or {}))

    @app.exception_handler(QueueFullError)
    async def busy(_: Request, error: QueueFullError) -> JSONResponse:
        return failure(503, "too many records wait already; try again in a moment", **{"Retry-After": "1"})

    @app.exception_handler(PredictionError)
    async def failed(_: Request, error: PredictionError) -> JSONResponse:
        return failure(500, "the model failed on these records; the server's log says why")

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        return failure(500, "the server failed on this request; its log says why")


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of "127.0.0.1:8000", "[::1]:8000" or "8000", which means this machine alone; else ConfigError."""
    match = re.fullmatch(r"(?:(?:\[([0-9A-Fa-f:.]+)\]|([^\s\[\]:/]+)):)?([0-9]{1,5})", text)
    if match is None or int(match[3]) > 65535:
        raise ConfigError(
            f"the address to serve on is {text!r}, allowed is HOST:PORT or PORT with a port from 0 (any free one) to "
            f"65535, such as {LOOPBACK}:8000, [::1]:8000 or 8000"
        )
    return match[1] or match[2] or LOOPBACK, int(match[3])


def check_address(host: str, port: int) -> None:
    """Before a model is loaded: raise ConfigError if `serve` could not bind to this address."""
    _listen(host, port).close()


def serve(
    predictor: Predictor, host: str, port: int, limits: Limits = DEFAULT_LIMITS, allowed_hosts: Collection[str] = ()
) -> None:
    """Answer requests until SIGTERM or Ctrl-C, then let those that run finish. To be called in the main thread.

    Args:
        host: name or address to bind to. port: 0 takes a free one, which is printed.
        allowed_hosts: that requests may name besides the served address, as for parse_hosts.

    Raises:
        ConfigError: the address cannot be bound to, or a host has a scheme or port.
    """
    with _listen(host, port) as listener:
        address, port = listener.getsockname()[:2]
        app = create_app(predictor, limits, hosts_of(host, address) | parse_hosts(allowed_hosts))
        print(f"serving {predictor.task_info.task} on http://{_in_url(address)}:{port}/ (Ctrl-C ends)", flush=True)
        if not ipaddress.ip_address(address).is_loopback:
            print("note: whoever reaches this address may use the model: there is no password", flush=True)
        config = uvicorn.Config(
            app,
            http=partial(TimedConnection, limits),
            ws="none",
            timeout_keep_alive=limits.headers_time + 2 * limits.body_time,  # later than TimedConnection's own
            timeout_graceful_shutdown=limits.graceful_timeout,
            log_level="warning",
            access_log=False,
            server_header=False,
        )
        server = DrainingServer(config)
        # Having ended in good order, uvicorn raises the signal again, for whoever handled it before.
        previous = {number: signal.signal(number, server.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            server.run(sockets=[listener])
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
    print("stopped", flush=True)


def _listen(host: str, port: int) -> socket.socket:
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot serve on {_in_url(host)}:{port}: {reason}") from error
    # Its connections have this, too. A reply's body would else wait 40 ms for the client's word that the head is there.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
