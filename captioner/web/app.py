"""The web page and the HTTP API: POST an image to /caption, get JSON.

One process holds the models; images that arrive together are captioned together. `make_app` lists the routes.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from captioner import __version__
from captioner.captioning.caption import Caption
from captioner.captioning.options import CaptionOptions
from captioner.captioning.records import Origin, caption_record
from captioner.figures.drawing import figure_bytes
from captioner.figures.masks import STYLES
from captioner.figures.word_grid import word_grid
from captioner.images.opening import ImageError, NotAnImageError, open_image
from captioner.web import uploads
from captioner.web.assets import VIEWER, VIEWER_STYLE, read_asset
from captioner.web.guard import Guard, answer_exception
from captioner.web.request_queue import CaptionQueue, QueueFull
from captioner.web.served_models import Served
from captioner.web.uploads import Refusal, UploadBudget

ANSWER_SECONDS = 30.0
PREVIEW = 1600  # pixels on the longer side
FORMATS = {"png": "image/png", "pdf": "application/pdf", "svg": "image/svg+xml"}
PAGE_FILES = {"serve.css": "text/css", "serve.js": "text/javascript", VIEWER_STYLE: "text/css"} | dict.fromkeys(
    VIEWER, "text/javascript"
)
Found = TypeVar("Found")


@dataclass(frozen=True)
class Limits:
    """How much of everything one request, and all together, may take: bytes, seconds, images."""

    body: int = uploads.MAX_BODY
    held: int = uploads.MAX_HELD
    upload_seconds: float = uploads.UPLOAD_SECONDS
    answer_seconds: float = ANSWER_SECONDS


@dataclass
class Ask:
    """What a client asks for."""

    model: Served
    image: bytes
    options: CaptionOptions
    settings: dict[str, str]  # those that are not of the search


@dataclass
class _Service:
    """The answers to all requests."""

    models: dict[str, Served]
    examples: dict[str, tuple[Path, str]]
    limits: Limits
    queue: CaptionQueue
    drawing: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="draw"))
    started: float = field(default_factory=time.monotonic)
    answered: int = 0

    def __post_init__(self) -> None:
        self.holdings = UploadBudget(self.limits.held)

    async def health(self, _: Request) -> Response:
        """Tell how the server is."""
        return JSONResponse(
            {
                "status": "ok",
                "version": __version__,
                "models": [{"name": model.name, "digest": model.captioner.digest} for model in self.models.values()],
                "uptime_seconds": round(time.monotonic() - self.started, 1),
                "answered": self.answered,
                "waiting": self.queue.unanswered,
            }
        )

    async def list_models(self, _: Request) -> Response:
        """Tell which models there are; the first is the default."""
        return JSONResponse({"models": [model.describe() for model in self.models.values()]})

    async def list_examples(self, _: Request) -> Response:
        """Tell which example images there are."""
        return JSONResponse(
            {"examples": [{"name": Path(name).stem, "url": f"/examples/{quote(name)}"} for name in self.examples]}
        )

    async def show_example(self, request: Request) -> Response:
        """Send an example image; no name is looked up anywhere but among those found at the start."""
        name = request.path_params["name"]
        if name not in self.examples:
            raise HTTPException(404)
        path, kind = self.examples[name]
        return FileResponse(path, media_type=kind)

    async def caption(self, request: Request) -> Response:
        """Caption the image of a request."""
        with self.holdings.share() as take:
            ask = await self._ask(request, take, [])
            started = time.perf_counter()
            captions = await self._captions(request, ask)
        record = caption_record(
            "", captions, Origin(ask.model.captioner.digest, ask.options.identity(), attention=True)
        )
        del record["file_name"]
        answer = {**record, "model": ask.model.name, "digest": ask.model.captioner.digest}
        self.answered += 1
        return JSONResponse({**answer, "milliseconds": round(1000 * (time.perf_counter() - started), 1)})

    async def figure(self, request: Request) -> Response:
        """Draw where each word of the image's caption looked."""
        with self.holdings.share() as take:
            ask = await self._ask(request, take, ["style", "format", "alternative"])
            style, format, place = _read_drawing(ask)
            captions = await self._captions(request, ask)
            if place >= len(captions):
                raise Refusal(400, f"alternative is {place}; the image has {len(captions)} captions, numbered from 0")
            drawn = self.drawing.submit(_draw, ask.image, captions[place], style, format)
            contents = await self._in_time(request, asyncio.wrap_future(drawn))
        self.answered += 1
        return Response(
            contents,
            media_type=FORMATS[format],
            headers={"Content-Disposition": f'attachment; filename="caption.{format}"'},
        )

    async def preview(self, request: Request) -> Response:
        """Send the image of a request back upright and as a JPEG, for browsers that do not know its format."""
        with self.holdings.share() as take:
            image = (await self._ask(request, take, [])).image
            try:
                contents = await self._in_time(request, asyncio.wrap_future(self.drawing.submit(_shrink, image)))
            except ImageError as error:
                raise _refuse(error) from None
        return Response(contents, media_type="image/jpeg")

    async def _ask(self, request: Request, take: Callable[[int], None], others: list[str]) -> Ask:
        """Read a request; `others` are settings it may have beside `model` and those of a search."""
        query = request.query_params
        if twice := next((name for name in query if len(query.getlist(name)) > 1), None):
            raise Refusal(400, f"{twice[:100]} is given twice; give it once")
        body = await uploads.read_body(request, take, limit=self.limits.body, seconds=self.limits.upload_seconds)
        image, settings = uploads.read_upload(body, request.headers.get("content-type", ""), dict(query))
        try:
            model = self.models[uploads.take_choice(settings, "model", list(self.models))]
            options = uploads.take_options(settings)
            uploads.check_none_left(
                {name: text for name, text in settings.items() if name not in others}, ["model", *others]
            )
        except ValueError as error:
            raise Refusal(400, str(error)) from None
        return Ask(model, image, options, settings)

    async def _captions(self, request: Request, ask: Ask) -> list[Caption]:
        try:
            future = self.queue.submit(ask.model.captioner, ask.image, ask.options)
            return await self._in_time(request, asyncio.wrap_future(future))
        except QueueFull as error:
            raise Refusal(503, f"{error}; try again", {"Retry-After": "2"}) from None
        except ImageError as error:
            raise _refuse(error) from None

    async def _in_time(self, request: Request, future: asyncio.Future[Found]) -> Found:
        """Return a result, unless it takes too long or its asker leaves."""
        leaving = asyncio.ensure_future(_disconnected(request))
        try:
            either: set[asyncio.Future[Any]] = {future, leaving}
            await asyncio.wait(either, timeout=self.limits.answer_seconds, return_when=asyncio.FIRST_COMPLETED)
            if future.done():
                return future.result()
            if leaving.done():
                raise ClientDisconnect
            raise Refusal(504, f"no answer within {self.limits.answer_seconds:g} seconds", {"Retry-After": "5"})
        finally:
            leaving.cancel()
            future.cancel()


def _refuse(error: ImageError) -> Refusal:
    # What is not an image is another matter than one that is damaged or too large.
    return Refusal(415 if isinstance(error, NotAnImageError) else 422, f"the image is refused: {error.reason}")


async def _disconnected(request: Request) -> None:
    """Return when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _read_drawing(ask: Ask) -> tuple[str, str, int]:
    """Return style, format and which caption of the settings of a figure."""
    try:
        style = uploads.take_choice(ask.settings, "style", list(STYLES))
        format = uploads.take_choice(ask.settings, "format", list(FORMATS))
        place = uploads.take_choice(ask.settings, "alternative", [str(place) for place in range(ask.options.n_best)])
    except ValueError as error:
        raise Refusal(400, str(error)) from None
    return style, format, int(place)


def _draw(image: bytes, caption: Caption, style: str, format: str) -> bytes:
    """Return a word grid as the bytes of a file."""
    return figure_bytes(word_grid(open_image(image), caption, style=style), f".{format}")


def _shrink(image: bytes) -> bytes:
    """Return an image as the bytes of a JPEG that fits a screen."""
    picture = open_image(image)
    picture.thumbnail((PREVIEW, PREVIEW))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def make_app(
    models: Sequence[Served],
    *,
    examples: dict[str, tuple[Path, str]] | None = None,
    local: bool = True,
    limits: Limits | None = None,
    queue: CaptionQueue | None = None,
) -> Guard:
    """Return the application, for an ASGI server.

    GET / is the page, /health, /models and /examples tell what there is. POST /caption, /figure and /preview take an
    image as the body or in a form, and settings as a query or in the form. Without a `queue` it makes one; it closes
    either.
    """
    service = _Service(
        {model.name: model for model in models}, examples or {}, limits or Limits(), queue or CaptionQueue()
    )

    def show(name: str, kind: str) -> Route:
        text = read_asset(name)

        async def answer(_: Request) -> Response:
            return Response(text, media_type=kind, headers={"Cache-Control": "no-cache"})

        return Route("/" if name == "serve.html" else f"/{name}", answer)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.queue.close)
        service.drawing.shutdown(cancel_futures=True)

    get: dict[str, Callable[[Request], Coroutine[Any, Any, Response]]] = {
        "/health": service.health,
        "/models": service.list_models,
        "/examples": service.list_examples,
        "/examples/{name}": service.show_example,
    }
    routes = [
        show("serve.html", "text/html"),
        *(show(name, kind) for name, kind in PAGE_FILES.items()),
        *(Route(path, answer) for path, answer in get.items()),
        Route("/caption", service.caption, methods=["POST"]),
        Route("/figure", service.figure, methods=["POST"]),
        Route("/preview", service.preview, methods=["POST"]),
    ]
    handlers: Any = dict.fromkeys((HTTPException, Refusal, ClientDisconnect, Exception), answer_exception)
    return Guard(Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers), local=local)
