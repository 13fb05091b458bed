"""The records of captions as a JSON Schema: what `captioner caption --json` prints and `captions.jsonl` holds."""

from __future__ import annotations

from typing import Any

VERSION = 1

_NUMBER, _TEXT, _COUNT = {"type": "number"}, {"type": "string"}, {"type": "integer", "minimum": 0}
_SHARE = {"type": "number", "minimum": 0, "maximum": 1}


def _list(items: dict[str, Any], text: str) -> dict[str, Any]:
    return {"type": "array", "items": items, "description": text}


# What a caption is, in records and in the answers of the HTTP API.
CAPTION: dict[str, Any] = {
    "text": {**_TEXT, "description": "the caption, as it is worded for people"},
    "words": _list(_TEXT, "the T words that the model said"),
    "probabilities": _list(_SHARE, "of each word, T numbers"),
    "log_prob": {
        **_NUMBER,
        "maximum": 0,
        "description": "natural logarithm of the probability of all words and the end",
    },
    "confidence": {
        **_SHARE,
        "description": "how likely people would accept the caption: the first of a beam, by a calibrated model",
    },
    "attention": _list(_list(_list(_SHARE, "a row"), "a word"), "weights, T x rows x columns; each word's sum to 1"),
    "points": _list(
        _list(_list(_NUMBER, "row and column, 0 the middle of the first"), "a word"),
        "where the eye rested, T x glimpses x 2, in cells; only of models with attention.mode glimpse",
    ),
    "extents": _list(_NUMBER, "how far the patch of each scale reaches from a point, in cells"),
    "beta": _list(_SHARE, "how much of what it looked at each word let in, T numbers"),
    "heads": {"type": "array", "description": "weights of all heads, T x layers x heads x rows x columns"},
}
REQUIRED = ("text", "words", "probabilities", "log_prob")
LOOKS = ("attention", "beta", "geometry")  # of records with attention, and of every answer

_NAME: dict[str, Any] = {
    "file_name": {**_TEXT, "description": "the image's path as given or found; ARCHIVE/MEMBER for one in an archive"},
    "file_name_bytes": {**_TEXT, "description": "the bytes of a path that is not UTF-8, in hexadecimal"},
}
_GEOMETRY: dict[str, Any] = {
    "type": "object",
    "description": "where the grid of attention lies on the upright image, in pixels",
    "properties": {
        "width": _COUNT,
        "height": _COUNT,
        "box": _list(_NUMBER, "left, top, right, bottom"),
        "flipped": {"type": "boolean"},
        "boxes": _list(_list(_NUMBER, "left, top, right, bottom"), "of regions that a detector found"),
    },
    "required": ["width", "height", "box", "flipped"],
}
_FILE: dict[str, Any] = {
    "type": "object",
    "description": "what tells whether the image is still the same",
    "properties": {"bytes": _COUNT, "modified": {**_TEXT, "description": "UTC"}, "digest": _TEXT},
    "required": ["bytes", "modified", "digest"],
}


# What a record of captions may hold.
FIELDS: dict[str, Any] = {
    **_NAME,
    **CAPTION,
    "alternatives": _list(
        {"type": "object", "properties": CAPTION, "required": list(REQUIRED)}, "the next best captions"
    ),
    "geometry": _GEOMETRY,
    "model": {**_TEXT, "description": "a hash of the model's weights and settings"},
    "model_name": _TEXT,
    "search": {"type": "object", "description": "all settings that decide what is said"},
    "wording": {"type": "object", "description": "what was made of the model's words: sentence, prefix, suffix"},
    "file": _FILE,
    "corrected": {"type": "boolean", "description": "somebody chose or wrote the text"},
    "model_text": {**_TEXT, "description": "what the model said, where somebody wrote another text"},
}


def record_schema() -> dict[str, Any]:
    """Return the JSON Schema of one line: the captions of an image, or why it has none."""
    caption = {
        "type": "object",
        "title": "the captions of an image",
        "properties": FIELDS,
        "required": ["file_name", *REQUIRED, "model", "search"],
    }
    error = {
        "type": "object",
        "title": "an image without a caption",
        "properties": {**_NAME, "error": {**_TEXT, "description": "why, in one line"}},
        "required": ["file_name", "error"],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"captioner-record-{VERSION}",
        "title": "A line of captions.jsonl, errors.jsonl and `captioner caption --json`",
        "description": "Further fields may be added; those that are here keep their meaning within a version.",
        "version": VERSION,
        "oneOf": [caption, error],
    }
