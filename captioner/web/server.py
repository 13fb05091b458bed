"""An application on a socket: uvicorn, with connections that cannot be held open for nothing."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from captioner.web.guard import SAFETY_HEADERS, Guard

HEAD_SECONDS = 15.0
KEEP_SECONDS = 10  # between two requests
_HEAD_BYTES = 32_768


class Connection(H11Protocol):
    """A connection that says what it wants in good time, or is closed; what is not HTTP gets its error as JSON."""

    head_seconds = HEAD_SECONDS
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._forget()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, or has too large a head."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error": f"{msg.rstrip('.')}; its head may be too large"}).encode()
            headers: list[tuple[bytes, bytes]] = [
                *((name.lower().encode(), value.encode()) for name, value in SAFETY_HEADERS.items()),
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                (b"connection", b"close"),
            ]
            phrase = HTTPStatus.BAD_REQUEST.phrase.encode()
            events: list[Any] = [
                h11.Response(status_code=400, headers=headers, reason=phrase),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ]
            for event in events:
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch(self) -> None:
        """Set a deadline while the head of a request is awaited."""
        if self.conn.their_state is not h11.IDLE:
            self._forget()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.head_seconds, self.transport.close)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens, on any free port where `port` is 0; raise ValueError where it cannot."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        # Python adds to what the system says; names that are not found have numbers below zero.
        number = error.errno or 0
        reason = (os.strerror(number) if number > 0 else error.strerror or str(error)).lower()
        raise ValueError(
            f"cannot listen on port {port} of {host}: {reason}; choose another with --port or --host"
        ) from None


def address(listener: socket.socket) -> str:
    """Return the URL under which a socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def make_server(app: Guard) -> uvicorn.Server:
    """Return a server whose `run(sockets=[listener])` answers until the process is interrupted.

    That raises KeyboardInterrupt once everything has ended. In another thread than the main one, set `should_exit`.
    """
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="critical",  # what goes wrong, the application says itself
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_SECONDS,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=_HEAD_BYTES,
    )
    return uvicorn.Server(config)
