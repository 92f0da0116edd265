"""ASGI middleware that refuses requests by host and size, and answers cancelled ones."""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Collection

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from model_utils.errors import ConfigError

ANY_HOST = "*"
_UNSPECIFIED = {"0.0.0.0", "::"}  # every address of the machine
_ABSOLUTE = re.compile(r"https?://(?P<authority>[^/]*)(?P<path>/.*)?", re.IGNORECASE | re.DOTALL)  # request target
_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^\[\]:]*?)\.?)(?::\d*)?")


def failure(code: int, sentence: str, **headers: str) -> JSONResponse:
    """Return the reply {"error": sentence}."""
    return JSONResponse({"error": sentence}, code, headers)


def hosts_of(host: str, address: str) -> frozenset[str]:
    """Return the host names of a server on `host`, bound to this address."""
    names = {host.lower(), address}
    if address in _UNSPECIFIED:
        names |= {"localhost", socket.gethostname().lower()}
    elif ipaddress.ip_address(address).is_loopback:
        names |= {"localhost", "127.0.0.1", "::1"}
    return frozenset(names)


def parse_hosts(names: Collection[str]) -> frozenset[str]:
    """Return names and addresses as requests spell them ("*": any); ConfigError for one with a scheme or port."""
    for name in names:
        if name != ANY_HOST and not _is_address(name) and re.search(r"[\s:/\[\]*]|^$", name):
            raise ConfigError(
                f"allowed_hosts holds {name!r}, allowed are names and addresses without scheme and port, or {ANY_HOST}"
            )
    return frozenset(map(_as_requested, names))


class AllowedHosts:
    """Middleware that refuses requests for other hosts with 421.

    It prevents DNS rebinding: a foreign page whose name is made to point at this machine could otherwise use the server
    through the browser of somebody who can reach it.

    Args:
        names: in any spelling; "*" allows any host, 0.0.0.0 or :: any address.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self.app = app
        self.names = frozenset(map(_as_requested, names))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope = _in_origin_form(scope)
        if scope["type"] == "http" and not self._allows(Headers(scope=scope).get("host", "")):
            refused = failure(421, "the request names another host than this server's; --allowed_hosts allows more")
            await refused(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _allows(self, header: str) -> bool:
        match = _HOST.fullmatch(header.lower())
        host = (match[1] or match[2]) if match else ""
        if ANY_HOST in self.names or host in self.names:
            return True
        return bool(self.names & _UNSPECIFIED) and _is_address(host)


def _in_origin_form(scope: Scope) -> Scope:
    """Return the scope of a request for http://host/path as one for /path with that Host (RFC 9112, 3.2.2)."""
    match = _ABSOLUTE.fullmatch(scope["path"]) if scope["type"] == "http" else None
    if match is None:
        return scope
    path = match["path"] or "/"
    headers = [header for header in scope["headers"] if header[0] != b"host"]
    headers.append((b"host", match["authority"].encode("latin-1", "replace")))
    return scope | {"path": path, "raw_path": path.encode(), "headers": headers}


def _as_requested(name: str) -> str:
    """Return a host as browsers send it: addresses in shortest form, names in lower-case ASCII without a final dot."""
    if _is_address(name):
        return str(ipaddress.ip_address(name))
    try:
        return name.lower().rstrip(".").encode("idna").decode()
    except UnicodeError:  # not a domain name, but perhaps the name of a machine in a local network
        return name.lower()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class BodyLimit:
    """Middleware that refuses bodies of more than `limit` bytes with 413, by their declared or by their actual size."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app = app
        self.limit = limit
        self.sentence = f"the body has more than {limit:,} bytes"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def receive_within_limit() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self.limit:
                raise HTTPException(413, self.sentence)
            return message

        declared = Headers(scope=scope).get("content-length", "") if scope["type"] == "http" else ""
        if declared.isdecimal() and int(declared) > self.limit:
            await failure(413, self.sentence)(scope, receive, send)
        else:
            await self.app(scope, receive_within_limit, send)


class WholeFiles:
    """A request for a part of a file gets the whole: wrong ranges would be refused in words that are no JSON."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = scope | {"headers": [header for header in scope["headers"] if header[0] != b"range"]}
        await self.app(scope, receive, send)


class GracefulClose:
    """Middleware that answers 503 to requests cancelled by a stopping server, in place of a traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        except asyncio.CancelledError:
            if scope["type"] != "http":
                raise
            if not has_begun:
                await failure(503, "the server is stopping")(scope, receive, send)
