"""What stands between a server's application and the network: who may ask, for how long, and how errors look.

Every error is JSON, {"error": "..."}.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from captioner.files import printable
from captioner.web.metrics import Metrics
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


@dataclass(frozen=True)
class Access:
    """Who may ask, and under which address.

    `local` tells that the server listens on this machine only. Then a name that leads here from elsewhere is refused,
    so that a page in the user's browser cannot reach the server by pointing its own name at 127.0.0.1. `hosts` are
    names beside this machine's own, with or without a port, such as that of a proxy; where there are some, no others
    are answered. With a `token`, all paths but the `open_paths` need it. `root_path` is where a proxy has put the
    server, "" or such as "/captions"; requests are answered with it or without.
    """

    local: bool = True
    hosts: tuple[str, ...] = ()
    token: str | None = None
    open_paths: frozenset[str] = frozenset()
    root_path: str = ""

    def check(self, path: str, method: str, headers: Headers) -> None:
        """Raise `Refusal` where a request must not be answered."""
        host = headers.get("host", "").lower()
        if (self.local or self.hosts) and not self._is_known(host):
            known = ", ".join(["localhost", "127.0.0.1", *self.hosts])
            raise Refusal(403, f"the host is {host[:100]!r}; this server answers to {known}")
        if method not in ("GET", "HEAD"):
            origin = headers.get("origin")
            if origin is not None and not self._is_same(origin.lower(), host):
                raise Refusal(403, f"the origin is {origin[:100]!r}; other sites may not ask")
            if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
                raise Refusal(403, "other sites may not ask")
        if self.token is not None and path not in self.open_paths:
            given = headers.get("authorization", "").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(given, f"Bearer {self.token}".encode()):
                need = "this server needs a token: send the header Authorization: Bearer TOKEN"
                raise Refusal(401, need, {"WWW-Authenticate": "Bearer"})

    def _is_known(self, host: str) -> bool:
        name = (urlsplit(f"//{host}").hostname if _is_plain(host) else None) or ""
        return is_loopback(name) or self._is_allowed(host)

    def _is_allowed(self, host: str) -> bool:
        """Tell whether a host is one of those allowed beside this machine's own, with its port or with any."""
        return _is_plain(host) and any(each in (host, urlsplit(f"//{host}").hostname) for each in self.hosts)

    def _is_same(self, origin: str, host: str) -> bool:
        """Tell whether an origin is the page that this server sends, also behind a proxy that gives another host."""
        scheme, _, place = origin.partition("://")
        return scheme in ("http", "https") and (place == host or self._is_allowed(place))


class Guard:
    """An application behind checks of who asks, with headers of safety on every answer and a bound on requests.

    Every request is counted in the `metrics`; `log` is told of it in a line, if there is one to tell.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        metrics: Metrics,
        *,
        requests: int = REQUESTS,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self.app, self.access, self.metrics, self.most, self.log = app, access, metrics, requests, log
        self.under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or whatever else an ASGI server says."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        exchange = _Exchange(receive, send, uploaded=not has_body)
        scope = {**scope, "path": self._own_path(scope["path"]), "root_path": ""}
        started = time.monotonic()
        self.under_way += 1
        try:
            if refusal := self._refuse(scope, headers):
                await refusal(scope, exchange.receive, exchange.send)
            else:
                await self.app(scope, exchange.receive, exchange.send)
        except Exception:  # which Starlette has answered
            if not exchange.stalled:
                _logger.exception("a request failed")
        finally:
            self.under_way -= 1
            seconds = time.monotonic() - started
            self.metrics.observe(scope["path"], scope["method"], exchange.status, seconds)
            if self.log is not None:
                self.log(_log_line(scope, exchange, seconds))

    def _own_path(self, path: str) -> str:
        """Return a request's path as this application knows it, without that under which a proxy has put it."""
        root = self.access.root_path
        return path[len(root) :] if root and path.startswith(f"{root}/") else path

    def _refuse(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the answer to a request that does not reach the application, None where it does."""
        try:
            self.access.check(scope["path"], scope["method"], headers)
            if self.under_way > self.most:
                raise Refusal(503, "too many requests at once; try again", {"Retry-After": "5"})
        except Refusal as refusal:
            return error_response(refusal.status, refusal.reason, refusal.headers)
        if self.access.root_path and scope["path"] == self.access.root_path:
            return RedirectResponse(f"{self.access.root_path}/", 308)  # the page's links start from there
        return None


def _log_line(scope: Scope, exchange: _Exchange, seconds: float) -> str:
    """Return what is known of a request, in one line."""
    client = (scope.get("client") or ("-",))[0]
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    path = printable(scope["path"][:200])
    done = f"{exchange.status} {exchange.sent} bytes {1000 * seconds:.0f} ms"
    return f"{moment} {printable(str(client)[:100])} {scope['method'][:10]} {path} {done}"


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
    status: int = 499  # of the answer; until there is one, the client has left
    sent: int = 0  # bytes of the answer's body

    async def receive(self) -> Message:
        message = await self.take()
        self.uploaded = self.uploaded or not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        self.sent += len(message.get("body", b""))
        if message["type"] == "http.response.start":
            self.status = message["status"]
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
