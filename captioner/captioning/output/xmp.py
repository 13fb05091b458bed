"""Captions as XMP, the metadata that photo programs read: a packet of its own, or put into one that is there.

What a packet holds already stays as it is, byte for byte: properties are put in, and replaced only where their text is
one that the program wrote. A caption is `dc:description`, and alternative text is `Iptc4xmpCore:AltTextAccessibility`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

MAX_PACKET = 20_000_000  # bytes
DESCRIPTION = "dc:description"
_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_PROPERTIES = {
    DESCRIPTION: "http://purl.org/dc/elements/1.1/",
    "Iptc4xmpCore:AltTextAccessibility": "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
}
_EMPTY = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="captioner">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about="">
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
"""


@dataclass
class _Property:
    """Where a property stands in a packet, and what it says."""

    start: int
    end: int = 0
    text: str = ""


@dataclass
class _Places:
    """What there is in a packet: our properties, and where others can be put."""

    room: int | None = None  # the byte before the end of the first description's start tag
    closed: bool = False  # it has no contents, and so no end tag
    prefix: str = "rdf"
    found: dict[str, _Property] = field(default_factory=dict)
    as_attributes: set[str] = field(default_factory=set)


def make_packet(text: str) -> bytes:
    """Return a packet that says a caption and nothing else."""
    return merge(_EMPTY.encode(), text, lambda said: True)[0]


def merge(packet: bytes, text: str, is_ours: Callable[[str], bool]) -> tuple[bytes, bool]:
    """Return a packet with a caption put in, and whether it says it now.

    A property that says something else stays, unless `is_ours` tells that it is the program's; then False is returned.
    Raises ValueError where the packet cannot be read; it is UTF-8, as XMP in files is.
    """
    places = _read(packet)
    if places.room is None:
        raise ValueError("it holds no rdf:Description")
    says = True
    changes: list[tuple[int, int, bytes]] = []
    additions = ""
    for name, space in _PROPERTIES.items():
        known = places.found.get(name)
        said = known.text.strip() if known else ""
        if said == text:
            continue
        if name in places.as_attributes or (said and not is_ours(said)):
            says = says and name != DESCRIPTION
            continue
        element = _element(name, space, text, places.prefix)
        if known:
            changes.append((known.start, known.end, element.encode()))
        else:
            additions += f"\n   {element}"
    if additions:
        changes.append(_insertion(packet, places, additions))
    for start, end, new in sorted(changes, reverse=True):
        packet = packet[:start] + new + packet[end:]
    return packet, says


def description(packet: bytes) -> str | None:
    """Return the caption that a packet says, None if there is none; raise ValueError where it cannot be read."""
    found = _read(packet).found.get(DESCRIPTION)
    return found.text.strip() or None if found else None


def _element(name: str, space: str, text: str, rdf: str) -> str:
    declared = f"xmlns:{name.split(':')[0]}={quoteattr(space)}"
    item = f'<{rdf}:li xml:lang="x-default">{escape(text)}</{rdf}:li>'
    return f"<{name} {declared}><{rdf}:Alt>{item}</{rdf}:Alt></{name}>"


def _insertion(packet: bytes, places: _Places, additions: str) -> tuple[int, int, bytes]:
    assert places.room is not None
    if not places.closed:
        return places.room, places.room, additions.encode()
    slash = packet.rindex(b"/", 0, places.room)
    tag = f"{places.prefix}:Description" if places.prefix else "Description"
    return slash, places.room, f">{additions}\n  </{tag}>".encode()


def _read(packet: bytes) -> _Places:
    if len(packet) > MAX_PACKET:
        raise ValueError(f"it has {len(packet) / 1e6:,.0f} MB; at most {MAX_PACKET // 10**6} MB are read")
    reader = _Reader(packet)
    try:
        reader.parser.Parse(packet, True)
    except expat.ExpatError as error:
        raise ValueError(f"it is not XML: {error}") from None
    return reader.places


class _Reader:
    """Goes through a packet once and notes where things are."""

    def __init__(self, packet: bytes) -> None:
        self.packet, self.places = packet, _Places()
        self.parser = expat.ParserCreate("UTF-8", "\n")
        self.parser.namespace_prefixes = True
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.text
        self.parser.StartDoctypeDeclHandler = self.refuse
        self.parser.EntityDeclHandler = self.refuse
        self.path: list[tuple[str, str, str]] = []  # of elements that are open: namespace, name, prefix
        self.items = 0  # of the property that is open

    def refuse(self, *_: object) -> None:
        """Refuse what no packet has, and what attacks are made of."""
        raise ValueError("it declares entities")

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Note the first description, and our properties in any."""
        space, local, prefix = _split(name)
        self.path.append((space, local, prefix))
        if (space, local) == (_RDF, "Description") and self.depth() == 1:
            for known, known_space in _PROPERTIES.items():
                if f"{known_space}\n{known.split(':')[1]}" in {"\n".join(_split(key)[:2]) for key in attributes}:
                    self.places.as_attributes.add(known)
            if self.places.room is None:
                end = _tag_end(self.packet, self.parser.CurrentByteIndex)
                self.places.closed = self.packet[end - 1 : end] == b"/"
                self.places.room = end + 1
                self.places.prefix = prefix
        elif (found := self.property()) is not None and len(self.path) >= 2 and self.path[-2][1] == "Description":
            self.places.found.setdefault(found, _Property(self.parser.CurrentByteIndex))
            self.items = 0
        elif (space, local) == (_RDF, "li"):
            self.items += 1

    def end(self, name: str) -> None:
        """Note where one of our properties ends."""
        known = self.property()
        if known is not None and known in self.places.found and not self.places.found[known].end:
            self.places.found[known].end = _tag_end(self.packet, self.parser.CurrentByteIndex) + 1
        self.path.pop()

    def text(self, text: str) -> None:
        """Note what the first item of a property says; others are translations."""
        for space, local, _ in self.path:
            known = _known(space, local)
            if known in self.places.found and not self.places.found[known].end and self.items <= 1:
                self.places.found[known].text += text

    def depth(self) -> int:
        """Return how many descriptions are open, one in another."""
        return sum((space, local) == (_RDF, "Description") for space, local, _ in self.path)

    def property(self) -> str | None:
        """Return which of our properties the innermost element is, if it is one."""
        return _known(*self.path[-1][:2]) if self.depth() == 1 else None


def _known(space: str, local: str) -> str | None:
    return next((name for name, known in _PROPERTIES.items() if known == space and name.split(":")[1] == local), None)


def _split(name: str) -> tuple[str, str, str]:
    """Return the namespace, name and prefix of an element as the parser gives them."""
    parts = name.split("\n")
    return ("", parts[0], "") if len(parts) == 1 else (parts[0], parts[1], "".join(parts[2:]))


def _tag_end(packet: bytes, start: int) -> int:
    """Return where the `>` of the tag at `start` is; one within an attribute's quotes is none."""
    quote = 0
    for position in range(start, len(packet)):
        byte = packet[position]
        if quote:
            quote = 0 if byte == quote else quote
        elif byte in b"\"'":
            quote = byte
        elif byte == ord(">"):
            return position
    raise ValueError("a tag does not end")
