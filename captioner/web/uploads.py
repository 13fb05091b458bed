"""What a client may send: a body of bounded size in bounded time, images in it, and settings beside them.

A body is an image, a form with files, or JSON with images in base64. Nothing here touches a disk, and the name that a
client gives its file is not looked at.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message

from starlette.requests import Request

MAX_BODY = 10_000_000  # bytes
MAX_HELD = 256_000_000  # bytes of all bodies together
UPLOAD_SECONDS = 30.0
MAX_IMAGES = 16  # in one request
_MAX_PARTS, _MAX_PART_HEAD, _MAX_FIELD = 40, 4096, 200
# What curl sends with --data-binary unless it is told otherwise; the bytes tell whether they are an image.
_UNTOLD = ("", "application/octet-stream", "application/x-www-form-urlencoded")


class Refusal(Exception):
    """A request that is not granted: an HTTP status, one line that says why, and headers that go with it."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.headers = status, reason, dict(headers or {})


@dataclass
class UploadBudget:
    """How many bytes of uploads are held at present, and how many may be."""

    most: int = MAX_HELD
    held: int = 0

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that takes so many more bytes, or refuses; all are given back at the end."""
        taken = 0

        def take(count: int) -> None:
            nonlocal taken
            if self.held + count > self.most:
                raise Refusal(503, "the server holds too many uploads; try again", {"Retry-After": "5"})
            taken += count
            self.held += count

        try:
            yield take
        finally:
            self.held -= taken


async def read_body(request: Request, take: Callable[[int], None], *, limit: int, seconds: float) -> bytes:
    """Return a request's body; refuse one of more than `limit` bytes as soon as that is known, or a slow one.

    `take` is told the bytes as they come.
    """
    too_large = Refusal(413, f"the upload has more than {limit / 1e6:g} MB; send a smaller image")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large

    async def collect() -> bytes:
        body = bytearray()
        async for chunk in request.stream():
            if len(body) + len(chunk) > limit:
                raise too_large
            take(len(chunk))
            body += chunk
        return bytes(body)

    try:
        return await asyncio.wait_for(collect(), seconds)
    except asyncio.TimeoutError:
        raise Refusal(408, f"the upload took more than {seconds:g} seconds") from None


@dataclass(frozen=True)
class Upload:
    """What a client sent: the bytes of image files, and its settings as texts by name."""

    images: list[bytes]
    settings: dict[str, str]
    several: bool  # the client expects a list of answers, of however many images


def read_upload(body: bytes, content_type: str, query: Mapping[str, str]) -> Upload:
    """Return the images and the settings of a request, from the query, the fields of a form, or JSON."""
    header = Message()
    header["content-type"] = content_type
    # Without a type, or with one that is none, the email package answers text/plain.
    kind = header.get_content_type() if content_type.strip() else ""
    several, fields = False, dict[str, str]()
    if kind == "multipart/form-data":
        images, fields = _read_form(body, header.get_boundary())
        several = len(images) > 1
    elif kind == "application/json":
        images, fields, several = _read_json(body)
    elif kind.startswith("image/") or kind in _UNTOLD:
        images = [body]
    else:
        known = "image/*, multipart/form-data, or application/json"
        raise Refusal(415, f"the content type is {content_type[:100]!r}; send {known}")
    if twice := sorted(set(query) & set(fields)):
        raise Refusal(400, f"{twice[0][:100]} is given in the address and in the body; give it once")
    if not all(images):
        raise Refusal(400, "the upload is empty; send the bytes of an image")
    if len(images) > MAX_IMAGES:
        raise Refusal(400, f"the upload has {len(images)} images; send at most {MAX_IMAGES} at a time")
    return Upload(images, {**query, **fields}, several)


def _read_json(body: bytes) -> tuple[list[bytes], dict[str, str], bool]:
    """Return the images of a JSON object, its other fields as texts, and whether it has a list of images."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise Refusal(400, "the body is not JSON") from None
    if not isinstance(given, dict) or ("image" in given) == ("images" in given):
        raise Refusal(400, 'the JSON must be an object with "image", or with "images" for several')
    several = "images" in given
    found = given.pop("images") if several else [given.pop("image")]
    if not isinstance(found, list) or not found:
        raise Refusal(400, '"images" must be a list of images in base64')
    if len(found) > MAX_IMAGES:
        raise Refusal(400, f"the upload has {len(found)} images; send at most {MAX_IMAGES} at a time")
    fields: dict[str, str] = {}
    for name, value in given.items():
        if not isinstance(value, str | int | float):
            raise Refusal(400, f"{name[:100]} must be a text, a number, true or false")
        # JSON's own true and false are Python's, but for the capital.
        fields[name] = (str(value).lower() if isinstance(value, bool) else str(value))[:_MAX_FIELD]
    return [_from_base64(image) for image in found], fields, several


def _from_base64(text: object) -> bytes:
    """Return the bytes of an image in base64, also of a data: URL, as browsers give them."""
    if not isinstance(text, str):
        raise Refusal(400, "an image in JSON is a text: its bytes in base64")
    if text.startswith("data:"):
        _, _, text = text.partition(",")
    try:
        return base64.b64decode("".join(text.split()), validate=True)  # `base64` breaks lines
    except (binascii.Error, ValueError):
        raise Refusal(400, "an image in JSON is not base64; encode the bytes of the image file") from None


def _read_form(body: bytes, boundary: str | None) -> tuple[list[bytes], dict[str, str]]:
    """Return the files of a form and its other fields."""
    if not boundary:
        raise Refusal(400, "the form has no boundary; see multipart/form-data")
    delimiter = b"\r\n--" + boundary.encode("latin-1", "replace")
    _, *parts = (b"\r\n" + body).split(delimiter, _MAX_PARTS)
    if not parts or not parts[-1].startswith(b"--"):
        raise Refusal(400, f"the form is cut off, damaged, or has {_MAX_PARTS} parts or more")
    images: list[bytes] = []
    fields: dict[str, str] = {}
    for part in parts[:-1]:
        head, found, content = part.partition(b"\r\n\r\n")
        disposition = message_from_bytes(head.lstrip(b"\r\n")) if found and len(head) <= _MAX_PART_HEAD else Message()
        name = disposition.get_param("name", header="content-disposition")
        if not isinstance(name, str):
            raise Refusal(400, "a part of the form has no name; see multipart/form-data")
        if (
            name in ("image", "images", "file")
            or disposition.get_param("filename", header="content-disposition") is not None
        ):
            images.append(content)
        elif name in fields:
            raise Refusal(400, f"{name[:100]} is given twice; give it once")
        else:
            fields[name] = content[:_MAX_FIELD].decode("utf-8", "replace")
    if not images:
        raise Refusal(400, "the form has no file; send an image")
    return images, fields
