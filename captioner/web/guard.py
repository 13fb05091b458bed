"""What stands between a server's application and the network: who may ask, for how long, and how errors look.

Every error is JSON, {"error": "..."}.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from captioner.web.uploads import Refusal

REQUESTS = 256  # under way at a time, those still uploading included
LINGER_SECONDS = 2.0
SEND_SECONDS = 30.0
SAFETY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_LOOPBACK_NAMES = ("localhost", "ip6-localhost")
_logger = logging.getLogger(__name__)


def error_response(status: int, reason: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return an error as clients get it."""
    return JSONResponse({"error": reason}, status, headers)


async def answer_exception(request: Request, error: Exception) -> JSONResponse:
    """Return what a client is told of an exception that was raised on its behalf; a handler for Starlette."""
    if isinstance(error, Refusal):
        return error_response(error.status, error.reason, error.headers)
    if isinstance(error, ClientDisconnect):
        return error_response(499, "the client has left")  # so nobody reads this
    if not isinstance(error, HTTPException):
        return error_response(500, "the server failed; its log says why")
    reasons = {404: f"there is no {request.url.path[:100]!r} here", 405: f"{request.method} is not allowed here"}
    return error_response(error.status_code, reasons.get(error.status_code, str(error.detail)), error.headers)


def is_loopback(host: str) -> bool:
    """Tell whether a host's name or address is this machine and no other."""
    if host.lower() in _LOOPBACK_NAMES:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """An application behind checks of who asks, with headers of safety on every answer and a bound on requests.

    `local` tells that the server listens on this machine only. Then a name that leads here from elsewhere is refused,
    so that a page in the user's browser cannot reach the server by pointing its own name at 127.0.0.1.
    """

    def __init__(self, app: ASGIApp, *, local: bool, requests: int = REQUESTS) -> None:
        self.app, self.local, self.most = app, local, requests
        self.under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or whatever else an ASGI server says."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        exchange = _Exchange(receive, send, uploaded=not has_body)
        self.under_way += 1
        try:
            self._check(headers, scope["method"])
            await self.app(scope, exchange.receive, exchange.send)
        except Refusal as refusal:  # of the check
            response = error_response(refusal.status, refusal.reason, refusal.headers)
            await response(scope, exchange.receive, exchange.send)
        except Exception:  # which Starlette has answered
            if not exchange.stalled:
                _logger.exception("a request failed")
        finally:
            self.under_way -= 1

    def _check(self, headers: Headers, method: str) -> None:
        host = headers.get("host", "")
        name = urlsplit(f"//{host}").hostname if _is_plain(host) else None
        if self.local and not is_loopback(name or ""):
            raise Refusal(403, f"the host is {host[:100]!r}; this server answers to localhost and 127.0.0.1")
        if method not in ("GET", "HEAD"):
            origin = headers.get("origin")
            if origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
                raise Refusal(403, f"the origin is {origin[:100]!r}; other sites may not ask")
            if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
                raise Refusal(403, "other sites may not ask")
        if self.under_way > self.most:
            raise Refusal(503, "too many requests at once; try again", {"Retry-After": "5"})


def _is_plain(host: str) -> bool:
    """Tell whether a Host header is a name or address with or without a port, and nothing around it."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return False
    return parts.netloc == host and "@" not in host


@dataclass
class _Exchange:
    """One request and its answer, on their way through the guard."""

    take: Receive
    give: Send
    uploaded: bool  # the request is here as a whole
    stalled: bool = False  # the client does not take its answer

    async def receive(self) -> Message:
        message = await self.take()
        self.uploaded = self.uploaded or not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in SAFETY_HEADERS.items():
                headers.setdefault(name, value)
            if not self.uploaded:
                headers["Connection"] = "close"
        elif not self.uploaded and not message.get("more_body", False):
            # A connection closed with bytes unread is reset, and the client may lose the answer that came before. So
            # the answer goes out, and what the client still sends is dropped for a while before the end.
            await self._give({**message, "more_body": True})
            await self._linger()
            message = {"type": "http.response.body"}
        await self._give(message)

    async def _give(self, message: Message) -> None:
        try:
            await asyncio.wait_for(self.give(message), SEND_SECONDS)
        except asyncio.TimeoutError:
            self.stalled = True
            raise ClientDisconnect from None

    async def _linger(self) -> None:
        async def drop() -> None:
            while not self.uploaded:
                await self.receive()

        try:
            await asyncio.wait_for(drop(), LINGER_SECONDS)
        except asyncio.TimeoutError:
            return
