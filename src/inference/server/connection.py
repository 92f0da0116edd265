"""HTTP connections with time limits for slow clients; uvicorn limits only the time between two requests."""

import asyncio
import json
import select
import socket
import time
from asyncio import Transport
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import CLOSE_HEADER, STATUS_PHRASES, H11Protocol

from src.inference.server.limits import Limits

DRAIN_TIME = 0.5  # seconds; a stopping server still reads requests that were sent until then


class TimedConnection(H11Protocol):
    """Connection with a time limit for each phase of an exchange, which slow single bytes do not extend.

    An incomplete request gets 408 when its time is over, and the connection ends; so it does when the client does not
    read an answer in time. Bytes that are not HTTP get 400.
    """

    def __init__(self, limits: Limits, **uvicorn_arguments: Any) -> None:
        super().__init__(**uvicorn_arguments)
        self._limits = limits
        self._seconds = {h11.IDLE: limits.headers_time, h11.SEND_BODY: limits.body_time}
        self._phase: tuple[Any, Any] | None = None  # the current request, and the client's state in it
        self._timer: Any = None
        self._stopping = False

    def connection_made(self, transport: Transport) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._close_after_answer()
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._stopping and not self.transport.is_closing():  # the answer's headers left without "connection: close"
            self.shutdown()
        self._watch()

    def shutdown(self) -> None:
        """Answer requests that are under way, then close the connection."""
        self._stopping = True
        self._close_after_answer()
        self.loop.call_later(min(DRAIN_TIME, self._limits.graceful_timeout / 2), self._end_drain)

    def _close_after_answer(self) -> None:
        """Announce the end of the connection in the answer, so that the client sends no request that would be reset."""
        if self._stopping and self.cycle and not self.cycle.response_started:
            self.cycle.keep_alive = False
            self.cycle.scope["headers"].append(CLOSE_HEADER)  # uvicorn copies it to the answer

    def _end_drain(self) -> None:
        if self.transport.is_closing() or (self.cycle and not self.cycle.response_complete):
            return
        if self.conn.trailing_data[0]:  # incomplete headers
            self._refuse(503, "the server is stopping")
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is not an HTTP request, or its headers are too long")
        self.transport.close()

    def _watch(self) -> None:
        """Restart the timer when the exchange enters a new phase."""
        phase = self.cycle, self.conn.their_state
        if phase == self._phase:
            return
        self._phase = phase
        if self._timer:
            self._timer.cancel()
        # The application limits the time for its answer itself; after that the client is not reading it.
        longest_answer = self._limits.answer_time + self._limits.body_time
        client_state = self.conn.their_state
        seconds = self._seconds.get(client_state, longest_answer)
        if client_state is h11.IDLE and self.transport.get_write_buffer_size():  # the client is reading the last answer
            seconds += self._limits.body_time
        self._timer = self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        if self.conn.their_state is h11.SEND_BODY or self.conn.trailing_data[0]:
            self._refuse(408, "the request did not arrive in time")
        self.transport.abort()  # close() would wait for a client that reads nothing

    def _refuse(self, code: int, sentence: str) -> None:
        """Send an error in place of the application's answer, unless that has begun."""
        if self.transport.is_closing() or self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        if self.cycle:
            self.cycle.disconnected = True  # discards what the application sends from now on
        body = json.dumps({"error": sentence}).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        events = (
            h11.Response(status_code=code, headers=list(headers.items()), reason=STATUS_PHRASES[code]),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        for event in events:
            self.transport.write(self.conn.send(event))


class DrainingServer(uvicorn.Server):
    """Server that accepts the connections in its sockets' backlogs before it closes them; they would be reset."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept waiting connections, for DRAIN_TIME at most, then stop as uvicorn does."""
        end = time.monotonic() + DRAIN_TIME
        while sockets and select.select(sockets, [], [], 0)[0] and time.monotonic() < end:
            await asyncio.sleep(0)  # lets asyncio accept
        await super().shutdown(sockets)
