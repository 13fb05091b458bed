"""The HTTP API described for programs, as OpenAPI 3.1; settings and answers come from the one list of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from captioner import __version__
from captioner.captioning.schema import CAPTION, FIELDS, LOOKS, REQUIRED
from captioner.figures.masks import STYLES
from captioner.model.search_settings import Setting
from captioner.web.request_settings import SERVED
from captioner.web.uploads import MAX_IMAGES

Schema = dict[str, Any]
FORMATS = {"png": "image/png", "pdf": "application/pdf", "svg": "image/svg+xml"}
REFUSALS = {
    "400": "A setting, a form or JSON is wrong.",
    "401": "The server needs a token (`--token-file`).",
    "403": "The request comes from another site, or is for another host name.",
    "408": "The upload is too slow.",
    "413": "The upload is too large.",
    "415": "What was sent is not an image.",
    "422": "The image is damaged, has too many pixels, or takes too long to decode.",
    "503": "The server is too busy; see `Retry-After`.",
    "504": "There was no answer in time.",
}
# A caption as records hold it, with attention.
_CAPTION: Schema = {name: FIELDS[name] for name in (*REQUIRED, *LOOKS) if name in CAPTION}


def describe_api(models: Sequence[str], max_upload: int, root_path: str) -> Schema:
    """Return the description of the API that offers `models` and takes uploads of so many bytes."""
    search = [_parameter("model", {"type": "string", "enum": list(models), "default": models[0]}, "the model")]
    search += [_parameter(name, _setting_schema(about), about.help) for name, about in SERVED.items()]
    sample = {"type": "boolean", "default": False}
    search.append(_parameter("sample", sample, "draw words at random instead of following a beam"))
    drawing = [
        _parameter(
            "style", {"type": "string", "enum": list(STYLES), "default": next(iter(STYLES))}, "how to draw attention"
        ),
        _parameter("format", {"type": "string", "enum": list(FORMATS), "default": "png"}, "format of the figure"),
        _parameter("alternative", {"type": "integer", "minimum": 0, "default": 0}, "which caption; 0 is the best"),
    ]
    upload = f"At most {max_upload / 1e6:g} MB. Settings go into the address, or beside the images into a form or JSON."
    several = f"Up to {MAX_IMAGES} images in one request are answered with a list, in their order."
    figures = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in FORMATS.values()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "captioner",
            "version": __version__,
            "description": "Captions photographs, and tells for every word where the model looked.",
        },
        "servers": [{"url": root_path or "/"}],
        "paths": {
            "/caption": _post("Caption images", f"{upload} {several}", search, _caption_answer(), several=True),
            "/figure": _post("Draw a figure", f"The word grid of one image. {upload}", [*search, *drawing], figures),
            "/preview": _post(
                "Show an image",
                f"One image upright as a JPEG, for browsers that do not know its format. {upload}",
                [],
                {"image/jpeg": {"schema": {"type": "string", "format": "binary"}}},
            ),
            "/models": _get("List the models", "The first is the default.", "application/json"),
            "/examples": _get("List the example images", "Addresses are relative.", "application/json"),
            "/health": _get("Tell how the server is", "`status` is `ok` while it answers.", "application/json"),
            "/metrics": _get("Tell how the server does", "In the text format of Prometheus.", "text/plain"),
        },
        "components": {
            "schemas": {
                "Caption": {"type": "object", "required": list(_CAPTION), "properties": _CAPTION},
                "Answer": _answer_schema(),
                "Error": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {
                        "error": {"type": "string"},
                        "status": {"type": "integer", "description": "in a list of several answers"},
                    },
                },
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _setting_schema(about: Setting) -> Schema:
    schema: Schema = {"type": "integer" if about.type is int else "number"}
    if about.default is not None:
        schema["default"] = about.default
    for name, bound in (("minimum", about.least), ("maximum", about.most)):
        if math.isfinite(bound):
            schema[name] = about.type(bound)
    return schema


def _parameter(name: str, schema: Schema, about: str) -> Schema:
    description = f"{about[0].upper()}{about[1:]}."
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


def _post(summary: str, about: str, parameters: list[Schema], answers: Schema, *, several: bool = False) -> Schema:
    encoded = {"type": "string", "contentEncoding": "base64", "description": "The bytes of an image file in base64."}
    one = {"type": "object", "required": ["image"], "properties": {"image": encoded}}
    many = {"type": "array", "items": encoded, "minItems": 1, "maxItems": MAX_IMAGES}
    listed = {"type": "object", "required": ["images"], "properties": {"images": many}}
    file = {"type": "string", "format": "binary"}
    form = {"type": "array", "items": file, "maxItems": MAX_IMAGES} if several else file
    contents = {
        "image/*": {"schema": file},
        "multipart/form-data": {
            "schema": {"type": "object", "required": ["image"], "properties": {"image": form}},
        },
        "application/json": {"schema": {"oneOf": [one, listed]} if several else one},
    }
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "post": {
            "summary": summary,
            "description": about,
            "parameters": parameters,
            "requestBody": {"required": True, "content": contents},
            "responses": {
                "200": {"description": "The answer.", "content": answers},
                **{status: {"description": reason, "content": error} for status, reason in REFUSALS.items()},
            },
        }
    }


def _get(summary: str, about: str, kind: str) -> Schema:
    schema = {"type": "object" if kind == "application/json" else "string"}
    return {
        "get": {
            "summary": summary,
            "description": about,
            "responses": {"200": {"description": "The answer.", "content": {kind: {"schema": schema}}}},
        }
    }


def _caption_answer() -> Schema:
    answer = {"$ref": "#/components/schemas/Answer"}
    each = {"oneOf": [answer, {"$ref": "#/components/schemas/Error"}]}
    several = {"type": "object", "required": ["captions"], "properties": {"captions": {"type": "array", "items": each}}}
    return {"application/json": {"schema": {"oneOf": [answer, several]}}}


def _answer_schema() -> Schema:
    """Return the schema of an answer: a record of captions with attention, and how it was made."""
    properties = {
        **{name: FIELDS[name] for name in (*REQUIRED, *LOOKS, "search")},
        "confidence": FIELDS["confidence"],
        "alternatives": {**FIELDS["alternatives"], "items": {"$ref": "#/components/schemas/Caption"}},
        "model": {"type": "string", "description": "name of the model"},
        "digest": FIELDS["model"],
        "milliseconds": {"type": "number", "description": "how long it took"},
    }
    optional = ("confidence", "alternatives", "milliseconds")  # the time stands beside a list of several answers
    return {
        "type": "object",
        "required": [name for name in properties if name not in optional],
        "properties": properties,
    }
