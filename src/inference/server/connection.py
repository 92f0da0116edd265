"""HTTP connections that end when their client takes too long; uvicorn limits only the time between two requests."""

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

DRAIN_TIME = 0.5  # seconds at most that a stopping server reads what clients sent before they knew


class TimedConnection(H11Protocol):
    """One connection with a time limit for each part of an exchange, however slowly its bytes come or go.

    A request that is not there in time is 408, if anything of it has come; then, and where an answer is not taken, the
    connection ends. What is no HTTP at all is 400.
    """

    def __init__(self, limits: Limits, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self._limits = limits
        self._seconds = {h11.IDLE: limits.headers_time, h11.SEND_BODY: limits.body_time}
        self._part: tuple[Any, Any] | None = None  # which request, and what is expected of the client
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
        if self._stopping and not self.transport.is_closing():  # the answer began too early to say that it is the last
            self.shutdown()
        self._watch()

    def shutdown(self) -> None:
        """Answer a request that was sent before the client could know that the server stops, then close."""
        self._stopping = True
        self._close_after_answer()
        self.loop.call_later(min(DRAIN_TIME, self._limits.graceful_timeout / 2), self._end_drain)

    def _close_after_answer(self) -> None:
        """Tell the client that no request may follow this one; what it sent on would be reset."""
        if self._stopping and self.cycle and not self.cycle.response_started:
            self.cycle.keep_alive = False
            self.cycle.scope["headers"].append(CLOSE_HEADER)  # so that the answer has it, too

    def _end_drain(self) -> None:
        if self.transport.is_closing() or (self.cycle and not self.cycle.response_complete):
            return
        if self.conn.trailing_data[0]:  # headers that are not complete
            self._refuse(503, "the server is stopping")
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is no HTTP request, or its headers are too long")
        self.transport.close()

    def _watch(self) -> None:
        """Set the clock anew when a part of the exchange is over."""
        part = self.cycle, self.conn.their_state
        if part == self._part:
            return
        self._part = part
        if self._timer:
            self._timer.cancel()
        # While the server has its turn, the application watches the time; beyond it somebody does not take the answer.
        last_resort = self._limits.answer_time + self._limits.body_time
        seconds = self._seconds.get(part[1], last_resort)
        if part[1] is h11.IDLE and self.transport.get_write_buffer_size():  # the last answer is still to be taken
            seconds += self._limits.body_time
        self._timer = self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        if self.conn.their_state is h11.SEND_BODY or self.conn.trailing_data[0]:
            self._refuse(408, "the request did not arrive in time")
        self.transport.abort()  # close() would wait for a client that takes nothing

    def _refuse(self, code: int, sentence: str) -> None:
        """Answer in place of the application, unless it has begun to."""
        if self.transport.is_closing() or self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        if self.cycle:
            self.cycle.disconnected = True  # what the application sends from now on, nobody takes
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
    """A server that accepts what waits in its sockets' backlogs before it closes them; clients would be reset."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept waiting connections, for DRAIN_TIME at most, then stop as uvicorn does."""
        end = time.monotonic() + DRAIN_TIME
        while sockets and select.select(sockets, [], [], 0)[0] and time.monotonic() < end:
            await asyncio.sleep(0)  # asyncio accepts
        await super().shutdown(sockets)
