"""Units of work: which images are in them, what is left out, and the rows that come of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.tar_files import write_tar
from helpers.toy_captioner import make_toy, write_images

from captioner.captioning.captioner import Captioner
from captioner.captioning.options import make_options
from captioner.captioning.records import Origin
from captioner.captioning.units import Unit, Units, caption_unit
from captioner.images.key_set import KeySet
from captioner.images.sources import name_key
from captioner.model.encoders.encoder import Encoder


def test_images_come_in_units_and_archives_alone(tmp_path: Path) -> None:
    images = [path.as_posix() for path in write_images(tmp_path / "photos", 5)]
    shard = write_tar(tmp_path / "photos" / "0002a.tar", {}).as_posix()
    units = list(Units([str(tmp_path / "photos")], KeySet(), size=2))
    assert [(unit.names, unit.is_shard) for unit in units] == [
        (tuple(images[:2]), False),
        ((shard,), True),
        (tuple(images[2:4]), False),
        ((images[4],), False),
    ]
    assert len({unit.key for unit in units}) == 4


def test_what_is_done_or_given_twice_is_left_out(tmp_path: Path) -> None:
    images = [path.as_posix() for path in write_images(tmp_path / "photos", 4)]
    done = KeySet()
    done.add(name_key(images[1]))
    units = Units([str(tmp_path / "photos"), images[0], f"{tmp_path}/photos/*3.jpg"], done, size=10)
    assert [unit.names for unit in units] == [(images[0], images[2], images[3])]
    assert (units.found, units.skipped) == (6, 3)
    with pytest.raises(ValueError, match="size is 0"):
        Units([], KeySet(), size=0)


def test_halves_have_all_images_between_them() -> None:
    first, second = Unit(("a", "b", "c")).halves()
    assert (first.names, second.names) == (("a",), ("b", "c"))


def test_rows_of_paths_urls_and_shards_are_those_of_a_caption(tmp_path: Path, lite0: Encoder) -> None:
    model = Captioner(make_toy(lite0), device="cpu")
    first, second, third = write_images(tmp_path / "photos", 3)
    write_tar(tmp_path / "shard.tar", {"first.jpg": first.read_bytes(), "bad.jpg": b"no image"})
    write_tar(tmp_path / "empty.tar", {"notes.txt": b"text"})
    options = make_options()
    origin = Origin(model.digest, options.identity())

    def rows(unit: Unit) -> list[dict[str, object]]:
        return caption_unit(model, unit, origin, options, folder=tmp_path, storage={})

    texts = [caption.text for caption in model.caption([first, second])]
    third.write_bytes(b"")
    found = rows(Unit(("photos/0000.jpg", f"file://{second}", "photos/0002.jpg", "gone.jpg")))
    assert [row.get("text") for row in found] == [*texts, None, None]
    assert [row["file_name"] for row in found] == ["photos/0000.jpg", f"file://{second}", "photos/0002.jpg", "gone.jpg"]
    assert [row.get("error") for row in found[2:]] == ["empty file", "no such file or directory"]
    for name in ("shard.tar", f"file://{tmp_path}/shard.tar"):
        good, bad = rows(Unit((name,), is_shard=True))
        assert (good["file_name"], good["text"], good["shard"]) == (f"{name}/first.jpg", texts[0], name)
        assert (bad["file_name"], bad["shard"]) == (f"{name}/bad.jpg", name)
        assert "not one of" in str(bad["error"])
        empty = name.replace("shard", "empty")
        assert rows(Unit((empty,), is_shard=True)) == [{"file_name": empty, "error": "no images in it", "shard": empty}]
