"""Parquet files: rows of captions, and images that are part of the rows, as data hubs publish them; needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from captioner.datasets.annotations import ListedImage, Reading, shown
from captioner.datasets.columns import NAMES, SPLITS, TEXTS, captions_of, first_of, lower_keys, split_name
from captioner.files import check_regular, one_line, write_whole

UNPACKED = "unpacked-images"  # the folder that images from rows are written into
ROWS = 64  # that are in memory at a time, with their images
MAX_HELD = 500_000_000  # bytes in memory, whatever the rows share
# A file may unpack to so many bytes, in memory and on disk, and to so many for each of its own.
FREE_BYTES, MAX_RATIO = 100_000_000, 200
SUFFIXES = {b"\xff\xd8": ".jpg", b"\x89PNG": ".png", b"RIFF": ".webp", b"GIF8": ".gif", b"BM": ".bmp"}


def parquet_rows(root: Path, path: Path, reading: Reading) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a file with their places."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise ValueError(f"{path} needs pyarrow, which is not installed: pip install 'captioner[parquet]'") from None
    place = path.relative_to(root).as_posix()
    try:
        check_regular(path)
        number = unpacked = 0
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_rows_at_a_time(path, file.metadata)):
                unpacked += batch.nbytes
                _check_unpacked(path, unpacked)
                for row in batch.to_pylist():
                    number += 1
                    reading.lines += 1
                    yield f"{place}: row {number}", row
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read: {one_line(error)}") from None


def _rows_at_a_time(path: Path, about: Any) -> int:
    """Return how many rows are held together."""
    groups = [about.row_group(place) for place in range(about.num_row_groups)]
    columns: list[int] = [
        group.column(place).total_uncompressed_size for group in groups for place in range(group.num_columns)
    ]
    _check_unpacked(path, sum(columns))
    # One value that all rows share is stored once, and is in memory once for each row.
    return max(1, min(ROWS, MAX_HELD // max(1, *columns)))


def _check_unpacked(path: Path, length: int) -> None:
    if length > (most := FREE_BYTES + MAX_RATIO * path.stat().st_size):
        raise ValueError(f"{path} unpacks to {length / 1e6:,.0f} MB or more; at most {most / 1e6:,.0f} MB are read")


def parquet_files(root: Path) -> list[Path]:
    """Return the parquet files of a folder or of its data/, but not metadata.parquet."""
    found = [path for folder in (root, root / "data") for path in sorted(folder.glob("*.parquet"))]
    return [path for path in found if path.stem != "metadata"]


def read_parquet(root: Path) -> Reading:
    """Read rows with an image and its captions; the images are written into the folder, where they stay.

    A file's split is what its name begins with, as in validation-00000-of-00002.parquet.
    """
    reading = Reading(root.resolve().name)
    splits = {path: path.stem.partition("-")[0].lower() for path in parquet_files(root)}
    known = set(splits.values()) <= set(SPLITS) and len(set(splits.values())) > 1
    for path, word in splits.items():
        for number, (where, row) in enumerate(parquet_rows(root, path, reading)):
            record = lower_keys(row)
            if number == 0 and not ({*record} & {*NAMES} and {*record} & {*TEXTS}):
                wanted = "image and text (or caption, captions)"
                raise ValueError(f"{path} has the columns {', '.join(record)}; expected {wanted}")
            reference = _unpack(root, f"{path.stem}-{number:06d}", first_of(record, ("image", *NAMES)))
            if reference is None:
                reading.malformed(
                    where, f"expected the bytes of an image, found {shown(type(first_of(record, NAMES)))}"
                )
                continue
            image = reading.image(ListedImage(reference, split_name(word) if known else None, reference, where, ("",)))
            for text in captions_of(record):
                if (caption := reading.usable_caption(text, where)) is not None:
                    image.captions.append(caption)
    return reading


def _unpack(root: Path, name: str, image: object) -> str | None:
    """Write an image of a row into a file, unless it is there, and return its path in the folder; None for no image."""
    data = image.get("bytes") if isinstance(image, dict) else image
    if not isinstance(data, bytes):
        return None
    suffix = next((suffix for start, suffix in SUFFIXES.items() if data.startswith(start)), ".img")
    path = root / UNPACKED / f"{name}{suffix}"
    if not path.exists() or path.stat().st_size != len(data):
        path.parent.mkdir(exist_ok=True)
        write_whole(path, data, sync=False)
    return path.relative_to(root).as_posix()
