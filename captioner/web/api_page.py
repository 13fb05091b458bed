"""The HTTP API described for people: a page made of the OpenAPI description, without any script."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

# The place of the server's address is marked by ADDRESS.
_EXAMPLES = {
    "/caption": (
        "curl --data-binary @photo.jpg 'ADDRESS/caption?n_best=3'",
        "curl -F image=@a.jpg -F image=@b.jpg -F beam=3 ADDRESS/caption",
        'curl --json \'{"image": "\'$(base64 -w0 photo.jpg)\'", "sample": true}\' ADDRESS/caption',
    ),
    "/figure": ("curl -F image=@photo.jpg -F format=pdf -o figure.pdf ADDRESS/figure",),
    "/preview": ("curl --data-binary @photo.tif -o photo.jpg ADDRESS/preview",),
}


def api_page(api: Mapping[str, Any], address: str, *, token: bool = False) -> str:
    """Return the page as HTML; `api` is what `captioner.web.openapi.describe_api` returns.

    The examples are of the server at `address`, and send a token where it needs one.
    """
    command = 'curl -H "Authorization: Bearer TOKEN"' if token else "curl"
    examples = {
        path: [example.replace("ADDRESS", address).replace("curl", command, 1) for example in each]
        for path, each in _EXAMPLES.items()
    }
    about = api["info"]
    sections = "\n".join(
        _section(path, method, operation, examples.get(path, ()))
        for path, methods in api["paths"].items()
        for method, operation in methods.items()
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(about["title"])}: HTTP API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="viewer.css">
<link rel="stylesheet" href="docs.css">
</head>
<body>
<header>
<h1>HTTP API <small>{escape(about["title"])} {escape(about["version"])}</small></h1>
<p>{_text(about["description"])} Programs read <a href="openapi.json">openapi.json</a>; <a href="./">the page</a> is for
people. Settings go into the address, a form or JSON.</p>
</header>
<main>
{sections}
<section>
<h2>Errors</h2>
<p>An error is JSON, <code>{{"error": "..."}}</code>, with a status.</p>
{_errors(api)}
</section>
</main>
</body>
</html>
"""


def _section(path: str, method: str, operation: Mapping[str, Any], examples: Iterable[str]) -> str:
    parts = [
        f"<h2><code><b>{method.upper()}</b> {escape(path)}</code> <small>{escape(operation['summary'])}</small></h2>",
        f"<p>{_text(operation['description'])}</p>",
        *(f"<pre><code>{escape(example)}</code></pre>" for example in examples),
    ]
    if operation.get("parameters"):
        rows = ((each["name"], _values(each["schema"]), each["description"]) for each in operation["parameters"])
        parts.append(_table(("setting", "values", "meaning"), rows))
    if "requestBody" in operation:
        parts.append(f"<p>Send {_kinds(operation['requestBody']['content'])}.</p>")
    parts.append(f"<p>The answer is {_kinds(operation['responses']['200']['content'])}.</p>")
    return "<section>\n" + "\n".join(parts) + "\n</section>"


def _values(schema: Mapping[str, Any]) -> str:
    """Return the values that a setting may have, and its default, in a few words."""
    if "enum" in schema:
        told = ", ".join(map(str, schema["enum"]))
    elif schema["type"] == "boolean":
        told = "true, false"
    elif abs(schema.get("maximum", 0)) >= 2**53:
        told = "any whole number"
    elif "maximum" in schema:
        told = f"{schema['minimum']:,} to {schema['maximum']:,}"
    else:
        told = f"{schema['minimum']:,} or more"
    default = schema.get("default")
    return told if default is None or "enum" in schema else f"{told}; {str(default).lower()} by default"


def _kinds(content: Iterable[str]) -> str:
    *others, last = (f"<code>{escape(kind)}</code>" for kind in content)
    return f"{', '.join(others)} or {last}" if others else last


def _errors(api: Mapping[str, Any]) -> str:
    responses = api["paths"]["/caption"]["post"]["responses"]
    return _table(
        ("status", "reason"), ((status, each["description"]) for status, each in responses.items() if status != "200")
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    def row(cells: tuple[str, ...]) -> str:
        first, *rest = cells
        return f"<tr><td><code>{escape(first)}</code></td>{''.join(f'<td>{_text(cell)}</td>' for cell in rest)}</tr>"

    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    body = "\n".join(map(row, rows))
    return f'<div class="scroll"><table>\n<tr>{titles}</tr>\n{body}\n</table></div>'


def _text(text: str) -> str:
    """Return text as HTML, with what stands between backticks as code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))
