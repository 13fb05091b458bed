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

from captioner.captioning.options import CaptionOptions, make_options

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


def _whole(text: str) -> int:
    return int(text) if len(text) < 20 else _no(text)  # longer ones fit no integer of 64 bits


def _number(text: str) -> float:
    return float(text) if math.isfinite(float(text)) else _no(text)


def _truth(text: str) -> bool:
    truths = {"true": True, "1": True, "on": True, "yes": True, "false": False, "0": False, "off": False, "no": False}
    return truths[text.lower()] if text.lower() in truths else _no(text)


def _no(text: str) -> Any:
    raise ValueError(text)


# How each setting of the search is read, and from where to where it may lie: a public address must not ask for hours.
_SETTINGS: dict[str, tuple[Callable[[str], Any], str, float, float]] = {
    "beam": (_whole, "a whole number", 1, 20),
    "groups": (_whole, "a whole number", 1, 20),
    "n_best": (_whole, "a whole number", 1, 20),
    "sample": (_truth, "true or false", 0, 1),
    "temperature": (_number, "a number", 0.05, 10),
    "top_k": (_whole, "a whole number", 0, 1_000_000),
    "top_p": (_number, "a number", 0.001, 1),
    "seed": (_whole, "a whole number", -(2**63), 2**63 - 1),
    "minimum_length": (_whole, "a whole number", 0, 60),
    "maximum_length": (_whole, "a whole number", 1, 60),
}


def take_options(settings: dict[str, str]) -> CaptionOptions:
    """Take what tells how to search out of the settings; raise ValueError where it is no such thing."""
    given = {name: _read_setting(name, settings.pop(name)) for name in _SETTINGS if name in settings}
    lengths = {name: given.pop(name) for name in ("minimum_length", "maximum_length") if name in given}
    options = make_options(**given)
    return replace(options, search=replace(options.search, **lengths))


def _read_setting(name: str, text: str) -> Any:
    read, kind, least, most = _SETTINGS[name]
    try:
        value = read(text)
    except ValueError:
        raise ValueError(f"{name} is {text[:50]!r}; it must be {kind}") from None
    if not least <= value <= most:
        raise ValueError(f"{name} is {text[:50]}; it must be from {least:g} to {most:g}")
    return value


def take_choice(settings: dict[str, str], name: str, choices: list[str]) -> str:
    """Take one of some choices out of the settings, by default the first; raise ValueError where it is none."""
    choice = settings.pop(name, choices[0])
    if choice not in choices:
        raise ValueError(f"{name} is {choice[:50]!r}; choose from {', '.join(choices)}")
    return choice


def check_none_left(settings: Mapping[str, str], others: list[str]) -> None:
    """Raise ValueError where a setting is left that nothing has taken; `others` are valid beside those of a search."""
    if settings:
        valid = ", ".join([*others, *_SETTINGS])
        raise ValueError(f"unknown setting {next(iter(settings))[:50]!r}; choose from {valid}")
