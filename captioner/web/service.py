"""The answers to requests: images in, captions, figures and previews out, each within its deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from captioner import __version__
from captioner.captioning.caption import Caption
from captioner.captioning.options import CaptionOptions
from captioner.captioning.records import Origin, Record, caption_record
from captioner.figures.drawing import figure_bytes
from captioner.figures.masks import STYLES
from captioner.figures.word_grid import word_grid
from captioner.images.opening import ImageError, NotAnImageError
from captioner.web import request_settings, uploads
from captioner.web.decoding import Decoders
from captioner.web.metrics import CONTENT_TYPE, Metrics
from captioner.web.openapi import FORMATS
from captioner.web.request_queue import CaptionQueue, QueueFull
from captioner.web.served_models import Example, Served
from captioner.web.uploads import Refusal, UploadBudget

ANSWER_SECONDS = 30.0
PREVIEW = 1600  # pixels on the longer side
Found = TypeVar("Found")


@dataclass(frozen=True)
class Limits:
    """How much of everything one request, and all together, may take: bytes, seconds."""

    body: int = uploads.MAX_BODY
    held: int = uploads.MAX_HELD
    upload_seconds: float = uploads.UPLOAD_SECONDS
    answer_seconds: float = ANSWER_SECONDS

    @classmethod
    def of_uploads(cls, body: int) -> Limits:
        """Return limits for uploads of so many bytes; a few of the largest can be held at a time."""
        return cls(body=body, held=max(uploads.MAX_HELD, 4 * body))


@dataclass
class Ask:
    """What a client asks for."""

    model: Served
    images: list[bytes]
    several: bool  # it expects a list of answers
    options: CaptionOptions
    settings: dict[str, str]  # those that are not of the search
    deadline: float  # of `time.monotonic`, for the answer

    @property
    def image(self) -> bytes:
        """The one image, where only one makes sense."""
        if len(self.images) > 1:
            raise Refusal(400, f"the upload has {len(self.images)} images; send one")
        return self.images[0]


@dataclass
class Service:
    """The answers to all requests."""

    models: dict[str, Served]
    examples: dict[str, Example]
    limits: Limits
    queue: CaptionQueue
    decoders: Decoders
    metrics: Metrics
    drawing: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="draw"))
    answered: int = 0

    def __post_init__(self) -> None:
        self.held_uploads = UploadBudget(self.limits.held)

    async def health(self, _: Request) -> Response:
        """Tell how the server is."""
        return JSONResponse(
            {
                "status": "ok",
                "version": __version__,
                "models": [{"name": model.name, "digest": model.captioner.digest} for model in self.models.values()],
                "uptime_seconds": round(self.metrics.uptime, 1),
                "answered": self.answered,
                "waiting": self.queue.unanswered,
            }
        )

    async def show_metrics(self, _: Request) -> Response:
        """Tell how the server does, to Prometheus."""
        gauges = {
            "captioner_images_waiting": ("Images accepted and not yet answered.", float(self.queue.unanswered)),
            "captioner_upload_bytes": ("Bytes of uploads held at present.", float(self.held_uploads.held)),
            "captioner_decoders_ended_total": (
                "Decoding processes ended for what an image did.",
                float(self.decoders.ended),
            ),
        }
        return Response(self.metrics.text(gauges), headers={"Content-Type": CONTENT_TYPE})

    async def list_models(self, _: Request) -> Response:
        """Tell which models there are; the first is the default."""
        models = [model.describe() for model in self.models.values()]
        return JSONResponse({"models": models, "max_upload": self.limits.body, "max_images": uploads.MAX_IMAGES})

    async def list_examples(self, _: Request) -> Response:
        """Tell which example images there are; addresses are relative to this one."""
        return JSONResponse(
            {"examples": [{"name": Path(name).stem, "url": f"examples/{quote(name)}"} for name in self.examples]}
        )

    async def show_example(self, request: Request) -> Response:
        """Send an example image; no name is looked up anywhere but among those found at the start."""
        example = self.examples.get(request.path_params["name"])
        contents = await asyncio.to_thread(example.read) if example else None
        if example is None or contents is None:
            raise HTTPException(404)
        return Response(contents, media_type=example.kind)

    async def caption(self, request: Request) -> Response:
        """Caption the images of a request: an answer of one image, or a list of several, each of which may fail."""
        with self.held_uploads.share() as take:
            ask = await self._ask(request, take, [])
            started = time.perf_counter()
            outcomes = await self._captions(request, ask)
        if isinstance(outcomes[0], Refusal) and not ask.several:
            raise outcomes[0]
        records = [_answer(ask, outcome) for outcome in outcomes]
        answer = {"captions": records} if ask.several else records[0]
        self.answered += 1
        return JSONResponse({**answer, "milliseconds": round(1000 * (time.perf_counter() - started), 1)})

    async def figure(self, request: Request) -> Response:
        """Draw where each word of the image's caption looked."""
        with self.held_uploads.share() as take:
            ask = await self._ask(request, take, ["style", "format", "alternative"])
            style, format, place = _read_drawing(ask)
            image = ask.image
            (captions,) = await self._captions(request, ask)
            if isinstance(captions, Refusal):
                raise captions
            if place >= len(captions):
                raise Refusal(400, f"alternative is {place}; the image has {len(captions)} captions, numbered from 0")
            picture = await self._decoded(request, ask, self.decoders.open(image, ask.deadline))
            drawn = self.drawing.submit(_draw, picture, captions[place], style, format)
            contents = await self._in_time(request, ask, [drawn])
        self.answered += 1
        return Response(
            contents[0],
            media_type=FORMATS[format],
            headers={"Content-Disposition": f'attachment; filename="caption.{format}"'},
        )

    async def preview(self, request: Request) -> Response:
        """Send the image of a request back upright and as a JPEG, for browsers that do not know its format."""
        with self.held_uploads.share() as take:
            ask = await self._ask(request, take, [])
            shrunk = self.decoders.shrink(ask.image, PREVIEW, ask.deadline)
            contents = await self._decoded(request, ask, shrunk)
        return Response(contents, media_type="image/jpeg")

    async def _ask(self, request: Request, take: Callable[[int], None], others: list[str]) -> Ask:
        """Read a request; `others` are settings it may have beside `model` and those of a search."""
        query = request.query_params
        if twice := next((name for name in query if len(query.getlist(name)) > 1), None):
            raise Refusal(400, f"{twice[:100]} is given twice; give it once")
        body = await uploads.read_body(request, take, limit=self.limits.body, seconds=self.limits.upload_seconds)
        upload = uploads.read_upload(body, request.headers.get("content-type", ""), dict(query))
        settings = upload.settings
        try:
            model = self.models[request_settings.take_choice(settings, "model", list(self.models))]
            options = request_settings.take_options(settings)
            request_settings.check_none_left(
                {name: text for name, text in settings.items() if name not in others}, ["model", *others]
            )
        except ValueError as error:
            raise Refusal(400, str(error)) from None
        deadline = time.monotonic() + self.limits.answer_seconds
        return Ask(model, upload.images, upload.several, options, settings, deadline)

    async def _captions(self, request: Request, ask: Ask) -> list[list[Caption] | Refusal]:
        """Return the captions of each image, or why there are none."""
        futures: list[Future[list[Caption]]] = []
        try:
            for image in ask.images:
                seconds = ask.deadline - time.monotonic()
                futures.append(self.queue.submit(ask.model.captioner, image, ask.options, seconds))
            found = await self._in_time(request, ask, futures)
        except QueueFull as error:
            raise Refusal(503, f"{error}; try again", {"Retry-After": "2"}) from None
        finally:
            for future in futures:
                future.cancel()
        outcomes = [_refuse(each) if isinstance(each, ImageError) else each for each in found]
        for outcome in outcomes:
            self.metrics.images[ask.model.name, "refused" if isinstance(outcome, Refusal) else "captioned"] += 1
        return outcomes

    async def _decoded(self, request: Request, ask: Ask, future: Future[Found]) -> Found:
        (found,) = await self._in_time(request, ask, [future])
        if isinstance(found, ImageError):
            raise _refuse(found)
        return found

    async def _in_time(self, request: Request, ask: Ask, futures: list[Future[Found]]) -> list[Found | ImageError]:
        """Return results, or why images were refused, unless they take too long or their client leaves."""
        waited = [asyncio.wrap_future(future) for future in futures]
        leaving = asyncio.ensure_future(_disconnected(request))
        ready = asyncio.ensure_future(asyncio.wait(waited))
        try:
            either: set[asyncio.Future[Any]] = {ready, leaving}
            seconds = max(0.0, ask.deadline - time.monotonic())
            await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                return [_outcome(future) for future in waited]
            if leaving.done():
                raise ClientDisconnect
            raise Refusal(504, f"no answer within {self.limits.answer_seconds:g} seconds", {"Retry-After": "5"})
        finally:
            leaving.cancel()
            ready.cancel()
            for each in waited:
                each.cancel()


def _outcome(future: asyncio.Future[Any]) -> Any:
    """Return the result of a future that is done, or why its image was refused."""
    if future.cancelled():
        raise Refusal(503, "the server is stopping", {"Retry-After": "5"})
    error = future.exception()
    return error if isinstance(error, ImageError) else future.result()


def _answer(ask: Ask, outcome: list[Caption] | Refusal) -> Record:
    """Return what a client is told of one image."""
    if isinstance(outcome, Refusal):
        return {"error": outcome.reason, "status": outcome.status}
    origin = Origin(ask.model.captioner.digest, ask.options.identity(), attention=True)
    record = caption_record("", outcome, origin)
    del record["file_name"]
    return {**record, "model": ask.model.name, "digest": ask.model.captioner.digest}


def _refuse(error: ImageError) -> Refusal:
    # What is not an image is another matter than one that is damaged or too large.
    return Refusal(415 if isinstance(error, NotAnImageError) else 422, f"the image is refused: {error.reason}")


async def _disconnected(request: Request) -> None:
    """Return when the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _read_drawing(ask: Ask) -> tuple[str, str, int]:
    """Return style, format and which caption of the settings of a figure."""
    places = [str(place) for place in range(ask.options.n_best)]
    try:
        style = request_settings.take_choice(ask.settings, "style", list(STYLES))
        format = request_settings.take_choice(ask.settings, "format", list(FORMATS))
        place = request_settings.take_choice(ask.settings, "alternative", places)
    except ValueError as error:
        raise Refusal(400, str(error)) from None
    return style, format, int(place)


def _draw(picture: Image.Image, caption: Caption, style: str, format: str) -> bytes:
    """Return a word grid as the bytes of a file."""
    return figure_bytes(word_grid(picture, caption, style=style), f".{format}")
