"""An application on a socket: uvicorn, with connections that cannot be held open for nothing."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import socket
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from captioner.web.guard import SAFETY_HEADERS, Guard

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]

HEAD_SECONDS = 15.0
KEEP_SECONDS = 10  # between two requests
CONNECTIONS = 512  # open at a time, those between two requests included
BACKLOG = 64  # taken at once before any of them is counted
STOP_SECONDS = 40  # for the answers to all that was asked: longer than any may take
_HEAD_BYTES = 32_768
_SPARE_FILES = 24  # for decoding processes and whatever libraries open
_logger = logging.getLogger(__name__)


class Connection(H11Protocol):
    """A connection that says what it wants in good time, or is closed; what is not HTTP gets its error as JSON.

    Where too many are open, the one whose client has been silent longest makes room for the next.
    """

    head_seconds = HEAD_SECONDS
    most = CONNECTIONS
    _deadline: asyncio.TimerHandle | None = None
    _heard = 0.0  # when anything came from the client

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin."""
        super().connection_made(transport)
        self._heard = self.loop.time()
        self._watch()
        if len(self.connections) > self.most:
            self._make_room()

    @property
    def is_awaited(self) -> bool:
        """Whether it is the client's turn: no request has come, or not the whole of one."""
        between = self._deadline is not None or self.timeout_keep_alive_task is not None
        return between or self.conn.their_state is h11.SEND_BODY

    def _make_room(self) -> None:
        """Close the connection that has been silent longest, or this one where all others are being answered."""
        note_once("connections", f"{self.most} connections are open; silent ones are closed to make room")
        silent = [each for each in self.connections if isinstance(each, Connection) and each.is_awaited]
        oldest = min(silent, key=lambda each: each._heard)
        self.connections.discard(oldest)  # it counts no longer, though its end takes another turn
        if oldest is self:
            self._send_error(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections at once; try again")
        else:
            oldest.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        self._heard = self.loop.time()
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._forget()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, or has too large a head."""
        self._send_error(HTTPStatus.BAD_REQUEST, f"{msg.rstrip('.')}; its head may be too large")

    def _send_error(self, status: HTTPStatus, reason: str) -> None:
        """Answer what does not reach the application, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error": reason}).encode()
            headers: list[tuple[bytes, bytes]] = [
                *((name.lower().encode(), value.encode()) for name, value in SAFETY_HEADERS.items()),
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                (b"connection", b"close"),
            ]
            events: list[Any] = [
                h11.Response(status_code=int(status), headers=headers, reason=status.phrase.encode()),
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
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
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

    That raises KeyboardInterrupt once everything has ended, and all who had asked have been answered. In another thread
    than the main one, set `should_exit`.
    """
    most, backlog = connection_limits()
    config = uvicorn.Config(
        app,
        http=type("BoundedConnection", (Connection,), {"most": most}),
        loop="asyncio",  # whose behaviour out of files is known
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="critical",  # what goes wrong, the application says itself
        access_log=False,
        server_header=False,
        backlog=backlog,
        timeout_keep_alive=KEEP_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
        h11_max_incomplete_event_size=_HEAD_BYTES,
    )
    return _Server(config)


def connection_limits() -> tuple[int, int]:
    """Return how many connections may be open, and how many are taken at once, within the files that may be open."""
    if resource is None:
        return CONNECTIONS, BACKLOG
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return CONNECTIONS, BACKLOG
    try:
        used = len(os.listdir("/dev/fd"))
    except OSError:
        used = 64
    free = max(8, allowed - used - _SPARE_FILES)
    # asyncio takes a whole backlog at a time, and again, before it tells of the first: half is kept for those.
    return min(CONNECTIONS, max(2, free // 2)), min(BACKLOG, max(1, free // 8))


class _Server(uvicorn.Server):
    """A server that says once, and in one line, that it is out of files."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_report)
        await super().startup(sockets)


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
        note_once("files", f"no connection can be taken for now: {os.strerror(error.errno).lower()}")
    else:
        loop.default_exception_handler(context)


_noted: set[str] = set()


def note_once(about: str, message: str) -> None:
    """Log a message the first time that it is about something."""
    if about not in _noted:
        _noted.add(about)
        _logger.warning("%s", message)
