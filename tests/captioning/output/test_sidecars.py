"""Sidecars and captions in images: nothing of other people's is lost, and photo programs find what was written."""

from __future__ import annotations

import io
import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.awkward_images import COLOURS, PLAIN, encode, exif, jpeg
from helpers.irregular_files import KINDS, make_irregular
from helpers.structural_images import padded_jpeg
from PIL import Image

from captioner.captioning.output import xmp
from captioner.captioning.output.embedding import embed_caption
from captioner.captioning.output.sidecars import Sidecars
from captioner.captioning.output.wording import Wording
from captioner.captioning.output.written_files import WrittenFiles
from captioner.images.opening import open_image
from captioner.images.sources import Source

SPACES = {
    "rdf": "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
    "dc": "http://purl.org/dc/elements/1.1/",
    "iptc": "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
}
DARKTABLE = b"""<?xml version="1.0" encoding="UTF-8"?>
<!-- by hand -->
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="XMP Core 4.4.0-Exiv2">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about=""
    xmlns:xmp="http://ns.adobe.com/xap/1.0/" xmlns:odd="http://example.org/a>b/"
   xmp:Rating="4" odd:note="2 &gt; 1 > 0">
   <odd:list><rdf:Seq><rdf:li>\xc3\xa9t\xc3\xa9</rdf:li></rdf:Seq></odd:list>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
"""


def said(packet: bytes) -> tuple[list[str | None], list[str | None]]:
    """Return the descriptions and alternative texts of a packet, as another parser reads them."""
    root = ElementTree.fromstring(packet.decode().partition("?>")[2].rpartition("<?xpacket end")[0] or packet)
    names = ("dc:description", "iptc:AltTextAccessibility")
    descriptions, texts = ([each.text for each in root.findall(f".//{name}//rdf:li", SPACES)] for name in names)
    return descriptions, texts


def test_a_packet_says_the_caption_twice() -> None:
    packet = xmp.make_packet('a "naïve" café & <dog>')
    assert said(packet) == (['a "naïve" café & <dog>'],) * 2
    assert xmp.description(packet) == 'a "naïve" café & <dog>'


def test_merging_loses_nothing() -> None:
    merged, says = xmp.merge(DARKTABLE, "a cat", lambda text: False)
    assert says
    assert said(merged) == (["a cat"], ["a cat"])
    start = merged.index(b"\n   <dc:description")
    end = merged.index(b"</Iptc4xmpCore:AltTextAccessibility>") + len(b"</Iptc4xmpCore:AltTextAccessibility>")
    assert merged[:start] + merged[end:] == DARKTABLE
    assert xmp.merge(merged, "a cat", lambda text: False) == (merged, True)
    again, says = xmp.merge(merged, "a dog", lambda text: text == "a cat")
    assert says
    assert again == merged.replace(b"a cat", b"a dog")
    kept, says = xmp.merge(merged, "a dog", lambda text: False)
    assert (kept, says) == (merged, False)


def test_a_description_without_contents_is_opened() -> None:
    packet = (
        b'<r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><r:Description r:about="" r:x="/>"/></r:RDF>'
    )
    merged, says = xmp.merge(packet, "a cat", lambda text: False)
    assert says
    assert said(merged) == (["a cat"], ["a cat"])
    assert merged.startswith(packet[:-10].rstrip(b"/"))


@pytest.mark.parametrize(
    ("packet", "reason"),
    [
        (b"not xml", "not XML"),
        (b"<a/>", "no rdf:Description"),
        (b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "entities"),
        (DARKTABLE.replace(b"</rdf:RDF>", b""), "not XML"),
    ],
)
def test_what_cannot_be_read_is_refused(packet: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        xmp.merge(packet, "a cat", lambda text: True)


def test_only_what_the_program_wrote_is_replaced(tmp_path: Path) -> None:
    out, image = tmp_path / "out", tmp_path / "x.jpg"
    out.mkdir()
    image.touch()
    path = tmp_path / "x.jpg.txt"
    assert Sidecars(WrittenFiles(out)).write_beside(image, "txt", "ours")
    assert Sidecars(WrittenFiles(out)).write_beside(image, "txt", "ours, later")
    assert path.read_text() == "ours, later\n"
    path.write_text("theirs\n")
    written = WrittenFiles(out)
    assert not Sidecars(written).write_beside(image, "txt", "ours")
    assert written.left == [path]
    assert path.read_text() == "theirs\n"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out", "x.jpg", "x.jpg.txt"]
    lines = (out / "written.jsonl").read_text().splitlines()
    assert [json.loads(line)["file"] for line in lines] == ["../x.jpg.txt"] * 2


def test_a_folder_of_an_earlier_version_is_the_programs_own(tmp_path: Path) -> None:
    (tmp_path / "captions.csv").write_text("by an earlier version")
    assert not WrittenFiles(tmp_path / "elsewhere" if (tmp_path / "elsewhere").mkdir() else tmp_path).may_replace(
        tmp_path / "captions.csv"
    )
    (tmp_path / "written.jsonl").unlink()
    (tmp_path / "captions.jsonl").touch()
    assert WrittenFiles(tmp_path).may_replace(tmp_path / "captions.csv")


def test_sidecars_named_by_the_stem_are_never_shared(tmp_path: Path) -> None:
    sidecars = Sidecars(WrittenFiles(None), "stem")
    for name in ("cat.jpg", "cat.png"):
        assert sidecars.write_beside(tmp_path / name, "txt", name)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "cat.txt": "cat.jpg\n",
        "cat.png.txt": "cat.png\n",
    }


def test_xmp_sidecars_are_merged_and_kept_up_to_date(tmp_path: Path) -> None:
    out, image, path = tmp_path / "out", tmp_path / "x.jpg", tmp_path / "x.jpg.xmp"
    out.mkdir()
    path.write_bytes(DARKTABLE)
    assert Sidecars(WrittenFiles(out)).write_beside(image, "xmp", "a cat")
    path.write_bytes(path.read_bytes().replace(b'Rating="4"', b'Rating="5"'))  # by a photo program
    assert Sidecars(WrittenFiles(out)).write_beside(image, "xmp", "a dog")
    assert said(path.read_bytes()) == (["a dog"], ["a dog"])
    assert b'Rating="5"' in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(b"a dog", b"Rex"))
    written = WrittenFiles(out)
    assert not Sidecars(written).write_beside(image, "xmp", "a cat")
    assert written.left == [path]
    assert xmp.description(path.read_bytes()) == "Rex"


def embedded_packet(data: bytes) -> bytes:
    with Image.open(io.BytesIO(data)) as image:
        return image.info.get("xmp") or image.info["XML:com.adobe.xmp"].encode()


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_embedding_leaves_the_rest_byte_for_byte(format: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    data = jpeg(COLOURS, exif=exif(6)) if format == "JPEG" else encode(COLOURS, "PNG")
    path.write_bytes(data)
    path.chmod(0o640)
    source = Source(path.name, path)
    assert embed_caption(source, "a cat", lambda text: False)[1]
    changed = path.read_bytes()
    assert said(embedded_packet(changed)) == (["a cat"], ["a cat"])
    extra = len(changed) - len(data)
    place = next(place for place in range(len(data)) if changed[place] != data[place])
    assert any(changed[:start] + changed[start + extra :] == data for start in range(place - 4, place + 1))
    assert np.array_equal(np.asarray(open_image(path)), np.asarray(open_image(data)))
    assert path.stat().st_mode & 0o777 == 0o640
    assert not embed_caption(source, "a dog", lambda text: False)[1]
    assert path.read_bytes() == changed
    assert embed_caption(source, "a dog", lambda text: text == "a cat")[1]
    again = path.read_bytes()
    assert said(embedded_packet(again)) == (["a dog"], ["a dog"])
    assert len(again) == len(changed)
    assert [each.name for each in tmp_path.iterdir()] == ["x"]


def test_embedding_where_markers_have_filling_before_them(tmp_path: Path) -> None:
    path = tmp_path / "x.jpg"
    path.write_bytes(data := padded_jpeg(3))
    assert embed_caption(Source(path.name, path), "a cat", lambda text: False)[1]
    assert said(embedded_packet(path.read_bytes())) == (["a cat"], ["a cat"])
    assert np.array_equal(np.asarray(open_image(path)), np.asarray(open_image(data)))


def test_what_has_no_place_for_captions_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x.gif"
    path.write_bytes(encode(COLOURS, "GIF", "P"))
    with pytest.raises(ValueError, match="cannot be put into GIF; use --format xmp"):
        embed_caption(Source(path.name, path), "a cat", lambda text: True)
    path.write_bytes(PLAIN)
    with pytest.raises(ValueError, match="no room"):
        embed_caption(Source(path.name, path), "a cat " * 20_000, lambda text: True)
    assert path.read_bytes() == PLAIN


def test_wording() -> None:
    assert Wording(sentence=True).apply("a cat sits on a table") == "A cat sits on a table."
    assert Wording(sentence=True).apply("") == ""
    assert Wording(True, "Photo: ", " (automatic)").apply("a cat .") == "Photo: A cat. (automatic)"
    assert Wording().identity() == {}
    assert Wording(prefix="x").identity() == {"prefix": "x"}
    with pytest.raises(ValueError, match="prefix is 'a\\\\nb'; it must be one line"):
        Wording(prefix="a\nb")


@pytest.mark.parametrize("kind", KINDS)
def test_sidecars_that_are_no_regular_files_are_left_unread(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "a.jpg"
    image.write_bytes(PLAIN)
    (tmp_path / "out").mkdir()
    written = WrittenFiles(tmp_path / "out")
    sidecars = Sidecars(written, "full")
    for suffix in ("txt", "xmp"):
        make_irregular(tmp_path / f"a.jpg.{suffix}", kind, monkeypatch)
        assert sidecars.is_beside(image, suffix)
        assert not sidecars.write_beside(image, suffix, "a cat")
    assert written.left == [tmp_path / "a.jpg.txt", tmp_path / "a.jpg.xmp"]
