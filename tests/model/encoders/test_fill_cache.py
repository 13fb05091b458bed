from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from captioner.datasets.dataset import CaptionDataset, CaptionedImage
from captioner.model.config import EncoderConfig
from captioner.model.encoders.encoder import Encoder, load_encoder
from captioner.model.encoders.engines import make_engine
from captioner.model.encoders.fill_cache import BATCH, fill_cache
from captioner.model.encoders.region_cache import RegionCache, cache_folder, cache_identity


def names(images: tuple[CaptionedImage, ...]) -> list[str]:
    return [image.file_name for image in images]


def expected_regions(images: tuple[CaptionedImage, ...], encoder: Encoder, flip: bool = False) -> np.ndarray:
    preprocessing = replace(encoder.preprocessing, flip=flip)
    return make_engine(encoder)(np.stack([preprocessing.read(image.path).pixels for image in images]))


def test_cache_holds_the_regions_in_half_precision(photos: CaptionDataset, lite0: Encoder, tmp_path: Path) -> None:
    folder, report = fill_cache(photos.images, tmp_path / "cache", lite0)
    assert (report.encoded, report.skipped, report.refused) == (40, 0, ())
    cache = RegionCache(folder)
    assert len(cache) == 40
    assert "0007.jpg" in cache
    chosen = (photos.images[31], photos.images[7], photos.images[7])
    regions = cache.regions(names(chosen))
    assert regions.dtype == np.float16
    assert regions.shape == (3, 4, 1280)
    np.testing.assert_array_equal(regions, expected_regions(chosen, lite0).astype(np.float16))
    assert isinstance(cache.rows, np.memmap)


def test_mirrored_copies_have_a_cache_of_their_own(photos: CaptionDataset, lite0: Encoder, tmp_path: Path) -> None:
    plain, _ = fill_cache(photos.images, tmp_path / "cache", lite0)
    mirrored, _ = fill_cache(photos.images, tmp_path / "cache", lite0, flip=True)
    assert plain != mirrored
    image = photos.images[3]
    twin = Image.open(image.path).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = lite0.preprocessing.apply(twin).pixels
    regions = RegionCache(mirrored).regions([image.file_name])
    np.testing.assert_allclose(regions, make_engine(lite0)(pixels[None]), atol=0.05)  # resizing rounds, mirrored or not
    assert np.abs(regions - RegionCache(plain).regions([image.file_name])).max() > 0.5


def test_nothing_is_encoded_twice(photos: CaptionDataset, lite0: Encoder, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    folder, first = fill_cache(photos.images[:25], root, lite0)
    before = (folder / "regions.f16").read_bytes()
    seen: list[tuple[int, int]] = []
    _, second = fill_cache(photos.images, root, lite0, progress=lambda done, total: seen.append((done, total)))
    assert (first.encoded, second.encoded, second.skipped) == (25, 15, 25)
    assert (folder / "regions.f16").read_bytes().startswith(before)
    assert seen == [(25, 40), (40, 40)]
    _, third = fill_cache(photos.images + photos.images[:5], root, lite0)
    assert (third.encoded, third.skipped) == (0, 40)


def test_a_changed_image_is_encoded_again_and_a_copied_one_is_not(
    photos: CaptionDataset, lite0: Encoder, tmp_path: Path
) -> None:
    folder, _ = fill_cache(photos.images, tmp_path / "cache", lite0)
    changed, touched, resaved = photos.images[0], photos.images[1], photos.images[2]
    Image.new("RGB", (48, 40), "red").save(changed.path, quality=90)
    os.utime(touched.path, ns=(1, 1))
    data = bytearray(resaved.path.read_bytes())
    data[-20] ^= 0xFF  # the same size, other contents
    resaved.path.write_bytes(data)
    _, report = fill_cache(photos.images, tmp_path / "cache", lite0)
    assert (report.encoded, report.skipped) == (2, 38)
    regions = RegionCache(folder).regions([changed.file_name])
    np.testing.assert_array_equal(regions, expected_regions((changed,), lite0).astype(np.float16))


def test_another_encoder_size_layer_or_weights_never_shares_a_cache(lite0: Encoder) -> None:
    config = EncoderConfig("efficientnet-lite0", size=64)
    others = [
        load_encoder(other)
        for other in (
            replace(config, size=96),
            replace(config, layer="stride16"),
            replace(config, fit="crop"),
            replace(config, weights="random"),
            replace(config, name="efficientnet-lite1"),
        )
    ]
    identities = [cache_identity(encoder) for encoder in (lite0, *others)] + [cache_identity(lite0, flip=True)]
    assert len({cache_folder(Path(), identity) for identity in identities}) == len(identities)
    assert cache_folder(Path(), cache_identity(load_encoder(config))) == cache_folder(Path(), identities[0])
    timm = load_encoder(EncoderConfig("timm/resnet18", size=64, weights="random"))
    assert len(cache_folder(Path("root"), cache_identity(timm)).relative_to("root").parts) == 1


def test_a_bad_image_is_left_out_and_named(photos: CaptionDataset, lite0: Encoder, tmp_path: Path) -> None:
    bad = photos.images[5]
    bad.path.write_bytes(bad.path.read_bytes()[:200])
    missing = replace(photos.images[6], path=tmp_path / "gone.jpg")
    images = (*photos.images[:6], missing, *photos.images[7:])
    folder, report = fill_cache(images, tmp_path / "cache", lite0)
    assert report.encoded == 38
    assert [reason.split(": ")[0] for reason in report.refused] == [str(bad.path), str(missing.path)]
    cache = RegionCache(folder)
    assert bad.file_name not in cache
    with pytest.raises(ValueError, match=r"no regions of 0005\.jpg and 1 more"):
        cache.regions(["0004.jpg", "0005.jpg", "0006.jpg"])
    rest = photos.images[:5] + photos.images[7:]
    np.testing.assert_array_equal(cache.regions(names(rest)), expected_regions(rest, lite0).astype(np.float16))
    _, again = fill_cache(images, tmp_path / "cache", lite0)
    assert (again.encoded, again.skipped, len(again.refused)) == (0, 38, 2)


@pytest.mark.parametrize("torn_index", [b'{"file_name": "0032.jpg", "ro', b""])
@pytest.mark.parametrize("surplus", [0, 1, 10240, 10240 * 3 + 17])
def test_torn_ends_are_cut_off(
    photos: CaptionDataset, lite0: Encoder, tmp_path: Path, torn_index: bytes, surplus: int
) -> None:
    whole, _ = fill_cache(photos.images, tmp_path / "whole", lite0)
    torn, _ = fill_cache(photos.images[:BATCH], tmp_path / "torn", lite0)
    with (torn / "index.jsonl").open("ab") as index, (torn / "regions.f16").open("ab") as rows:
        index.write(torn_index)
        rows.write(b"\xaa" * surplus)
    assert len(RegionCache(torn)) == BATCH  # readable as it is
    fill_cache(photos.images, tmp_path / "torn", lite0)
    for name in ("cache.json", "index.jsonl", "regions.f16"):
        assert (torn / name).read_bytes() == (whole / name).read_bytes()


def test_one_process_fills_a_cache_at_a_time(photos: CaptionDataset, lite0: Encoder, tmp_path: Path) -> None:
    def fill_again(done: int, total: int) -> None:
        if done < total:
            with pytest.raises(ValueError, match="is being filled by another process"):
                fill_cache(photos.images, tmp_path / "cache", lite0)

    folder, report = fill_cache(photos.images, tmp_path / "cache", lite0, progress=fill_again)
    assert report.encoded == len(RegionCache(folder)) == 40


def test_who_has_nothing_to_add_does_not_wait(photos: CaptionDataset, lite0: Encoder, tmp_path: Path) -> None:
    def look_in(done: int, total: int) -> None:
        _, report = fill_cache(photos.images[:5], tmp_path / "cache", lite0)
        assert (report.encoded, report.skipped) == (0, 5)

    fill_cache(photos.images[:5], tmp_path / "cache", lite0)
    _, report = fill_cache(photos.images, tmp_path / "cache", lite0, progress=look_in)
    assert (report.encoded, report.skipped) == (35, 5)


def test_an_interruption_keeps_what_is_done(photos: CaptionDataset, lite0: Encoder, tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done >= BATCH:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill_cache(photos.images, tmp_path / "cache", lite0, progress=interrupt)
    folder, report = fill_cache(photos.images, tmp_path / "cache", lite0)
    assert (report.encoded, report.skipped) == (40 - BATCH, BATCH)
    np.testing.assert_array_equal(
        RegionCache(folder).regions(names(photos.images)), expected_regions(photos.images, lite0).astype(np.float16)
    )


def test_an_image_that_changes_meanwhile_is_not_kept(photos: CaptionDataset, lite0: Encoder, tmp_path: Path) -> None:
    changed, gone = photos.images[0], photos.images[39]

    def meddle(done: int, total: int) -> None:
        if done == 0:  # after the run has looked at the files, before it reads them
            Image.new("RGB", (48, 40), "red").save(changed.path)
            os.utime(changed.path, ns=(1, 1))

    folder, report = fill_cache(photos.images, tmp_path / "cache", lite0, progress=meddle)
    assert report.refused == (f"{changed.path}: changed while it was being read; run again",)
    assert report.encoded == len(RegionCache(folder)) == 39
    assert changed.file_name not in RegionCache(folder)
    _, report = fill_cache(photos.images, tmp_path / "cache", lite0)
    assert (report.encoded, report.skipped) == (1, 39)
    regions = RegionCache(folder).regions(names(photos.images))
    np.testing.assert_array_equal(regions, expected_regions(photos.images, lite0).astype(np.float16))
    gone.path.unlink()
    _, report = fill_cache(photos.images, tmp_path / "cache", lite0)
    assert report.refused == (f"{gone.path}: no such file or directory",)


def test_a_batch_of_which_nothing_is_kept(photos: CaptionDataset, lite0: Encoder, tmp_path: Path) -> None:
    only = photos.images[:1]
    folder, report = fill_cache(only, tmp_path / "cache", lite0, progress=lambda *_: os.utime(only[0].path, ns=(1, 1)))
    assert (report.encoded, len(report.refused), len(RegionCache(folder))) == (0, 1, 0)
    assert fill_cache(only, tmp_path / "cache", lite0)[1].encoded == len(RegionCache(folder)) == 1


def test_a_damaged_index_leaves_the_cache_free(photos: CaptionDataset, lite0: Encoder, tmp_path: Path) -> None:
    folder, _ = fill_cache(photos.images[:2], tmp_path / "cache", lite0)
    (folder / "index.jsonl").write_text("nonsense\n")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"index\.jsonl:1 is damaged"):
            fill_cache(photos.images, tmp_path / "cache", lite0)


def test_a_full_disk_is_said_before_work_starts(
    photos: CaptionDataset, lite0: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ValueError, match=r"40 images need 0\.0 GB and the disk has 0\.0 GB free"):
        fill_cache(photos.images, tmp_path / "cache", lite0)


def test_what_is_no_cache_is_said_so(photos: CaptionDataset, lite0: Encoder, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is no region cache: it has no cache\.json"):
        RegionCache(tmp_path)
    folder, _ = fill_cache(photos.images[:2], tmp_path / "cache", lite0)
    index = (folder / "index.jsonl").read_text()
    (folder / "index.jsonl").write_text("nonsense\n" + index)
    with pytest.raises(ValueError, match=r"index\.jsonl:1 is damaged"):
        RegionCache(folder)
    (folder / "index.jsonl").write_text(index)
    identity = json.loads((folder / "cache.json").read_text())
    (folder / "cache.json").write_text(json.dumps({**identity, "format": 99}))
    with pytest.raises(ValueError, match="has format 99; this version reads 1"):
        RegionCache(folder)
    (folder / "cache.json").write_text("{")
    with pytest.raises(ValueError, match=r"cache\.json is not valid JSON"):
        RegionCache(folder)


def test_regions_beyond_half_precision_are_refused(photos: CaptionDataset, lite0: Encoder, tmp_path: Path) -> None:
    loud = load_encoder(EncoderConfig("resnet18", size=64, weights="random"))
    loud.trunk[0].weight.data *= 1e9  # type: ignore[index,union-attr]
    with pytest.raises(ValueError, match="too large for half precision"):
        fill_cache(photos.images, tmp_path / "cache", loud)


def test_a_file_that_cannot_be_read_is_not_what_was_encoded(
    photos: CaptionDataset, lite0: Encoder, tmp_path: Path
) -> None:
    image = photos.images[0]
    folder, _ = fill_cache([image], tmp_path / "cache", lite0)
    with RegionCache(folder) as cache:
        record = cache.records[image.file_name]
        later = (record.size, record.modified + 1)  # so that the contents are looked at
        assert record.is_of(image.path, later)
        image.path.unlink()
        assert not record.is_of(image.path, later)
        os.mkfifo(image.path)
        assert not record.is_of(image.path, later)
