"""ASGI middleware: which requests reach the application, by their host and size, and what those get that do not."""

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
_UNSPECIFIED = {"0.0.0.0", "::"}  # served on every address of the machine
_ABSOLUTE = re.compile(r"https?://(?P<authority>[^/]*)(?P<path>/.*)?", re.IGNORECASE | re.DOTALL)  # a request's target
_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^\[\]:]*?)\.?)(?::\d*)?")


def failure(code: int, sentence: str, **headers: str) -> JSONResponse:
    """What every request gets that is not answered: {"error": sentence}."""
    return JSONResponse({"error": sentence}, code, headers)


def hosts_of(host: str, address: str) -> frozenset[str]:
    """The names that a server on `host`, bound to this address, has by itself."""
    names = {host.lower(), address}
    if address in _UNSPECIFIED:
        names |= {"localhost", socket.gethostname().lower()}
    elif ipaddress.ip_address(address).is_loopback:
        names |= {"localhost", "127.0.0.1", "::1"}
    return frozenset(names)


def parse_hosts(names: Collection[str]) -> frozenset[str]:
    """Names or addresses as requests have them, allowed beside hosts_of; "*": any. ConfigError for one with a port."""
    for name in names:
        if name != ANY_HOST and not _is_address(name) and re.search(r"[\s:/\[\]*]|^$", name):
            raise ConfigError(
                f"allowed_hosts holds {name!r}, allowed are names and addresses without scheme and port, or {ANY_HOST}"
            )
    return frozenset(map(_as_requested, names))


class AllowedHosts:
    """A request that names another host than the server's is 421.

    Another site's page whose name is made to point at this machine (DNS rebinding) could otherwise ask the server in
    the browser of somebody who may reach it.

    Args:
        names: however written; with "*" among them any host is allowed, with 0.0.0.0 or :: any address.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self.app = app
        self.names = frozenset(map(_as_requested, names))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope = _in_origin_form(scope)
        if scope["type"] == "http" and not self._allows(Headers(scope=scope).get("host", "")):
            refused = failure(421, "the request names another host than this server's (--allowed_hosts names more)")
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
    """Return a request for http://host/path as one for /path whose Host is host (RFC 9112, 3.2.2)."""
    match = _ABSOLUTE.fullmatch(scope["path"]) if scope["type"] == "http" else None
    if match is None:
        return scope
    path = match["path"] or "/"
    headers = [header for header in scope["headers"] if header[0] != b"host"]
    headers.append((b"host", match["authority"].encode("latin-1", "replace")))
    return scope | {"path": path, "raw_path": path.encode(), "headers": headers}


def _as_requested(name: str) -> str:
    """A host as browsers name it: an address in its shortest form, a name in lower case and ASCII, no last dot."""
    if _is_address(name):
        return str(ipaddress.ip_address(name))
    try:
        return name.lower().rstrip(".").encode("idna").decode()
    except UnicodeError:  # no name of a domain, but perhaps what somebody's network calls a machine
        return name.lower()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class BodyLimit:
    """A body of more than `limit` bytes is 413: at once where its length is declared, else as soon as it is reached."""

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


class GracefulClose:
    """A request that the server cancels because it stops is 503; cancelling would end in a traceback otherwise."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def note_begin(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, note_begin)
        except asyncio.CancelledError:
            if scope["type"] != "http":
                raise
            if not begun:
                await failure(503, "the server is stopping")(scope, receive, send)
