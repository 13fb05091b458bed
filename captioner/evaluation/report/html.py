"""HTML put together from parts, so that whatever text goes in comes out as text, and pages that hold all they need."""

from __future__ import annotations

import base64
import hashlib
import html
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Sequence

_VOID = frozenset({"img", "input", "br", "hr"})
_LINE = re.compile(r"[^\S\N{NO-BREAK SPACE}]+")
_STRAY = re.compile(r" (?=[.,;:!?](?: |$))")  # the space that tokenized captions have before a full stop


class Html(str):
    """Text that is HTML already; all other text is escaped by `tag`."""

    __slots__ = ()


Attribute = str | int | None


def tag(name: str, *children: str, **attributes: Attribute) -> Html:
    """Return an element; children are escaped unless they are `Html`, attributes that are None are left out.

    An underscore at the end of an attribute's name is dropped, others are hyphens: `class_`, `aria_label`.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(visible(str(value)))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{join(children)}</{name}>")


def join(children: Iterable[str], between: str = "") -> Html:
    """Return children one after the other, escaped unless they are `Html`."""
    return Html(escape(between).join(escape(child) for child in children))


def escape(text: str) -> Html:
    """Return text as HTML that shows it."""
    return text if isinstance(text, Html) else Html(html.escape(visible(text)))


def visible(text: str) -> str:
    """Return text on one line, with control characters and halves of characters as they are written in Python."""
    line = _LINE.sub(" ", text)
    if line.isprintable():
        return line
    return "".join(
        character if unicodedata.category(character) not in ("Cc", "Cs") else ascii(character)[1:-1]
        for character in line
    )


def quote(text: str, is_marked: Callable[[str], bool] = lambda word: False) -> Html:
    """Return somebody's words, whichever way they are written, with some of them marked; "∅" stands for none."""
    words = _STRAY.sub("", visible(text)).split()
    if not words:
        return tag("span", "∅", class_="muted", title="no words")
    return tag("bdi", join((tag("mark", word) if is_marked(word) else word for word in words), " "))


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    wide: Collection[int] = (0,),
    class_: str | None = None,
) -> Html:
    """Return a table whose first column names the rows; `wide` columns are set to the left, the others hold numbers.

    On a narrow screen it scrolls within its own frame.
    """

    def css_class(column: int) -> str | None:
        return None if column in wide else "number"

    titles = (tag("th", title, scope="col", class_=css_class(column)) for column, title in enumerate(head))
    lines = [
        tag(
            "tr",
            *(
                tag("td", cell, class_=css_class(column)) if column else tag("th", cell, scope="row")
                for column, cell in enumerate(row)
            ),
        )
        for row in rows
    ]
    whole = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *titles)),
        tag("tbody", *lines),
        class_=class_,
    )
    # What scrolls must be reachable by keys.
    return tag("div", whole, class_="scroll", tabindex=0, role="region", aria_label=_plain(caption))


def section(anchor: str, title: str, *children: str) -> Html:
    """Return a part of the page that can be linked to."""
    heading = f"{anchor}-title"
    return tag("section", tag("h2", title, id=heading), *children, id=anchor, aria_labelledby=heading)


def stacked(first: str, *others: str) -> Html:
    """Return a cell: a number, and what belongs to it below."""
    return join([first, *(tag("small", other) for other in others)])


def _plain(text: str) -> str:
    return re.sub("<[^>]*>", "", text) if isinstance(text, Html) else text


def fill_template(template: str, **parts: str) -> str:
    """Return a page with its parts in the places of their names, such as {{title}}."""
    # In one pass, so that nothing is looked for in what was put in.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def policy_hash(text: str) -> str:
    """Return the source by which a Content-Security-Policy allows a script or style that is within the page."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"
