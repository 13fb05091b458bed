"""The web page and the HTTP API: POST an image to /caption, get JSON.

One process holds the models; images that arrive together are captioned together. `make_app` lists the routes, and
`service.py` has the answers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from captioner.web.api_page import api_page
from captioner.web.assets import PAGE_FILES, read_asset
from captioner.web.decoding import Decoders
from captioner.web.guard import Access, Guard, answer_exception
from captioner.web.metrics import Metrics
from captioner.web.openapi import describe_api
from captioner.web.request_queue import WAITING, CaptionQueue
from captioner.web.served_models import Example, Served
from captioner.web.service import Limits, Service
from captioner.web.uploads import Refusal

_HOST = re.compile(r"[A-Za-z0-9.\[\]:-]{1,255}")
_Answer = Callable[[Request], Coroutine[Any, Any, Response]]


def make_app(
    models: Sequence[Served],
    *,
    examples: dict[str, Example] | None = None,
    access: Access | None = None,
    limits: Limits | None = None,
    waiting: int = WAITING,
    queue: CaptionQueue | None = None,
    decoders: Decoders | None = None,
    log: Callable[[str], None] | None = None,
) -> Guard:
    """Return the application, for an ASGI server.

    GET / is the page, /docs and /openapi.json describe the API, /health, /metrics, /models and /examples tell what
    there is. POST /caption, /figure and /preview take images as the body, in a form or in JSON, and settings as a
    query or beside them. At most `waiting` images wait for each model. Without a `queue` or `decoders` it makes them;
    it closes either. `log` is told of each request in a line.
    """
    limits, decoders = limits or Limits(), decoders or Decoders()
    queue = queue or CaptionQueue(decoders, waiting=waiting)
    get: dict[str, _Answer] = {}
    post: dict[str, _Answer] = {}
    metrics = Metrics(paths := [])
    service = Service({model.name: model for model in models}, examples or {}, limits, queue, decoders, metrics)
    get |= {f"/{name}": _show(read_asset(name), kind) for name, kind in PAGE_FILES.items()}
    get["/"] = get.pop("/serve.html")
    api = describe_api([model.name for model in models], limits.body, (access or Access()).root_path)
    get["/docs"] = _show_docs(api, access or Access())
    get["/openapi.json"] = _show_json(api)
    open_paths = frozenset({*get, "/health"})  # which tell nothing of anybody's images
    get |= {
        "/health": service.health,
        "/metrics": service.show_metrics,
        "/models": service.list_models,
        "/examples": service.list_examples,
        "/examples/{name}": service.show_example,
    }
    post |= {"/caption": service.caption, "/figure": service.figure, "/preview": service.preview}
    paths += [*get, *post]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(queue.close)
        await asyncio.to_thread(decoders.close)
        service.drawing.shutdown(cancel_futures=True)

    routes = [
        *(Route(path, answer) for path, answer in get.items()),
        *(Route(path, answer, methods=["POST"]) for path, answer in post.items()),
    ]
    handlers: Any = dict.fromkeys((HTTPException, Refusal, ClientDisconnect, Exception), answer_exception)
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    return Guard(app, replace(access or Access(), open_paths=open_paths), metrics, log=log)


def _show(text: str, kind: str) -> _Answer:
    async def answer(_: Request) -> Response:
        return Response(text, media_type=kind, headers={"Cache-Control": "no-cache"})

    return answer


def _show_docs(api: dict[str, Any], access: Access) -> _Answer:
    """Answer with the page that describes the API, by the address under which it was asked for."""

    async def answer(request: Request) -> Response:
        host = request.headers.get("host", "")
        secure = request.headers.get("x-forwarded-proto", request.url.scheme) == "https"
        named = host if _HOST.fullmatch(host) else "127.0.0.1:8000"
        address = f"{'https' if secure else 'http'}://{named}{access.root_path}"
        text = api_page(api, address, token=access.token is not None)
        return Response(text, media_type="text/html", headers={"Cache-Control": "no-cache"})

    return answer


def _show_json(contents: dict[str, Any]) -> _Answer:
    async def answer(_: Request) -> Response:
        return JSONResponse(contents, headers={"Cache-Control": "no-cache"})

    return answer
