"""Middleware of the server: Host names, absolute targets, size of bodies, and replies while it stops."""

import asyncio
import contextlib
import ipaddress
import re
import socket
from collections.abc import Collection

import psutil
from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from model_utils.errors import ConfigError

ANY_HOST = "*"
_UNSPECIFIED = {"0.0.0.0", "::"}  # every address of the machine
_ABSOLUTE = re.compile(r"https?://(?P<authority>[^/]*)(?P<path>/.*)?", re.IGNORECASE | re.DOTALL)  # request target
_HOST = re.compile(r"\*|(?:\*\.)?[^\s:/\[\]*]+")


def error_response(code: int, sentence: str, **headers: str) -> JSONResponse:
    """Return the reply {"error": sentence}."""
    return JSONResponse({"error": sentence}, code, headers)


def format_host(host: str) -> str:
    """Return a name or address as in URLs and Host headers: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host


def default_hosts(host: str, address: str) -> set[str]:
    """Return the Host names that are accepted by default.

    They are the host, its address, of loopback also localhost, and of 0.0.0.0 or :: all addresses of the machine.
    """
    names = {host, address}
    if address in _UNSPECIFIED:
        interfaces = psutil.net_if_addrs().values()
        names |= {"localhost", socket.gethostname()}
        names |= {entry.address.partition("%")[0] for interface in interfaces for entry in interface}
    elif ipaddress.ip_address(address).is_loopback:
        names |= {"localhost", "127.0.0.1", "::1"}
    return set(map(format_host, names))


def parse_hosts(names: Collection[str]) -> set[str]:
    """Return further names and addresses ("*": any, "*.NAME": below NAME); ConfigError for one with scheme or port."""
    for name in names:
        if not _HOST.fullmatch(name) and not _is_ipv6(name):
            expected = f"names and addresses without scheme and port, or {ANY_HOST}"
            raise ConfigError(key="allowed_hosts", value=name, expected=expected)
    return set(map(format_host, names))


def _is_ipv6(name: str) -> bool:
    try:
        return bool(ipaddress.IPv6Address(name))
    except ValueError:
        return False


def accept_absolute_targets(app: ASGIApp) -> ASGIApp:
    """Return middleware that takes a request for http://host/path as one for /path with that Host (RFC 9112, 3.2.2)."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (match := _ABSOLUTE.fullmatch(scope["path"])):
            path = match["path"] or "/"
            headers = [header for header in scope["headers"] if header[0] != b"host"]
            headers.append((b"host", match["authority"].encode("latin-1", "replace")))
            scope = {**scope, "path": path, "raw_path": path.encode(), "headers": headers}
        await app(scope, receive, send)

    return answer


def close_when_stopping(app: ASGIApp) -> ASGIApp:
    """Return middleware whose answers end their connections while `app.state.stopping`.

    A client that keeps its connection would else send the next request to a closed one, and find it reset.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start" and scope["app"].state.stopping:
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        await app(scope, receive, send_last)

    return answer


def answer_cancelled(app: ASGIApp) -> ASGIApp:
    """Return middleware that answers 503 to a request cancelled by a stopping server; uvicorn logs it as a failure."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            with contextlib.suppress(RuntimeError):  # the answer has begun
                await error_response(503, "the server is stopping")(scope, receive, send)

    return answer


def limit_body(app: ASGIApp, limit: int) -> ASGIApp:
    """Return middleware that refuses bodies of more than `limit` bytes with 413; FastAPI replies in plain text."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def receive_within_limit() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                raise HTTPException(413, f"the body has more than {limit:,} bytes")
            return message

        await app(scope, receive_within_limit, send)

    return answer
