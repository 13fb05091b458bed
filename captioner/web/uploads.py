"""What a client may send: a body of bounded size in bounded time, an image in it, and settings beside it.

Nothing here touches a disk, and the name that a client gives its file is not looked at.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from email import message_from_bytes
from email.message import Message
from typing import Any

from starlette.requests import Request

from captioner.captioning.options import SETTINGS, CaptionOptions, make_options
from captioner.model.search_settings import Setting

MAX_BODY = 10_000_000  # bytes
MAX_HELD = 256_000_000  # bytes of all bodies together
UPLOAD_SECONDS = 30.0
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


def read_upload(body: bytes, content_type: str, query: Mapping[str, str]) -> tuple[bytes, dict[str, str]]:
    """Return the bytes of the image and the settings, from the query and from the fields of a form."""
    header = Message()
    header["content-type"] = content_type
    # Without a type, or with one that is none, the email package answers text/plain.
    kind = header.get_content_type() if content_type.strip() else ""
    if kind == "multipart/form-data":
        image, fields = _read_form(body, header.get_boundary())
    elif kind.startswith("image/") or kind in _UNTOLD:
        image, fields = body, {}
    else:
        raise Refusal(415, f"the content type is {content_type[:100]!r}; send image/*, or multipart/form-data")
    if twice := sorted(set(query) & set(fields)):
        raise Refusal(400, f"{twice[0][:100]} is given in the address and in the form; give it once")
    if not image:
        raise Refusal(400, "the upload is empty; send the bytes of an image")
    return image, {**query, **fields}


def _read_form(body: bytes, boundary: str | None) -> tuple[bytes, dict[str, str]]:
    """Return the one file of a form and its other fields."""
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
        if name in ("image", "file") or disposition.get_param("filename", header="content-disposition") is not None:
            images.append(content)
        elif name in fields:
            raise Refusal(400, f"{name[:100]} is given twice; give it once")
        else:
            fields[name] = content[:_MAX_FIELD].decode("utf-8", "replace")
    if len(images) != 1:
        raise Refusal(400, f"the form has {len(images)} files; send one image")
    return images[0], fields


_TRUTHS = {"true": True, "1": True, "on": True, "yes": True, "false": False, "0": False, "off": False, "no": False}
# A public address must not ask for hours: ranges are narrower than those of the command line.
_SERVED = {
    name: replace(about, least=about.served[0], most=about.served[1], above=-math.inf)
    for name, about in SETTINGS.items()
    if about.served is not None
}


def take_options(settings: dict[str, str]) -> CaptionOptions:
    """Take what tells how to search out of the settings; raise ValueError where it is no such thing."""
    given: dict[str, Any] = {
        name: _read_setting(about, settings.pop(name)) for name, about in _SERVED.items() if name in settings
    }
    sample = settings.pop("sample", "false")
    if sample.lower() not in _TRUTHS:
        raise ValueError(f"sample is {sample[:50]!r}; it must be true or false")
    return make_options(sample=_TRUTHS[sample.lower()], **given)


def _read_setting(about: Setting, text: str) -> float:
    try:
        return about.read(text)
    except ValueError as error:
        raise ValueError(f"{about.name} is {text[:50]!r}; {error}") from None


def take_choice(settings: dict[str, str], name: str, choices: list[str]) -> str:
    """Take one of some choices out of the settings, by default the first; raise ValueError where it is none."""
    choice = settings.pop(name, choices[0])
    if choice not in choices:
        raise ValueError(f"{name} is {choice[:50]!r}; choose from {', '.join(choices)}")
    return choice


def check_none_left(settings: Mapping[str, str], others: list[str]) -> None:
    """Raise ValueError where a setting is left that nothing has taken; `others` are valid beside those of a search."""
    if settings:
        valid = ", ".join([*others, *_SERVED, "sample"])
        raise ValueError(f"unknown setting {next(iter(settings))[:50]!r}; choose from {valid}")
