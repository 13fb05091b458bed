"""A folder of many images: seconds to the first caption once the model is loaded, images per second, peak memory.

    python experiments/benchmarks/folder.py
    python experiments/benchmarks/folder.py --images 1000 100000 --caption 2000

The folder is made of hard links to one small JPEG, below --scratch, and removed afterwards. Each number of images has a
process of its own, so that its peak memory is its own. All images are captioned into an output folder, or only the
first so many with --caption, which tells what the listing costs without the hours that the rest takes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from PIL import Image

IMAGE = Path(__file__).parents[2] / "data" / "examples" / "cat.jpg"
SIDE = 320  # pixels of the longest side of the JPEG
LINKS = 30_000  # to one file; file systems allow for 65,000 and less


def make_folder(folder: Path, images: int) -> None:
    """Fill a folder with so many links to small copies of one photograph."""
    folder.mkdir()
    original = folder.with_suffix(".jpg")
    with Image.open(IMAGE) as photograph:
        photograph.thumbnail((SIDE, SIDE))
        photograph.save(original)
    for number in range(images):
        path = folder / f"{number:08}.jpg"
        if number % LINKS == 0:
            shutil.copy(original, path)
            original = path
        else:
            os.link(original, path)


def run(folder: Path, model: str | None, caption: int | None) -> dict[str, float]:
    """Caption a folder, or its first images, into one beside it, and return what that took."""
    from captioner.captioning.captioner import load
    from captioner.captioning.folder_run import caption_into
    from captioner.captioning.options import CaptionOptions, OutputOptions
    from captioner.commands.arguments import search_beside_encoding
    from captioner.commands.collection import Collection
    from captioner.images.sources import Source

    captioner = load(model)
    search_beside_encoding(captioner)
    came: list[float] = []
    started = time.perf_counter()

    def sources() -> Iterator[Source]:
        return islice(iter(Collection([str(folder)], recursive=False)), caption)

    report = caption_into(
        folder.with_name("captions"),
        captioner,
        sources(),
        CaptionOptions(),
        OutputOptions(),
        listen=lambda result: came.append(time.perf_counter()) if not came else None,
    )
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"first": came[0] - started, "rate": report.captioned / seconds, "memory": peak / 1e6}


def main() -> None:
    """Measure each number of images in a process of its own, and print a table."""
    parser = argparse.ArgumentParser(description="Captioning a folder of many images.")
    parser.add_argument("--images", type=int, nargs="+", default=[1000, 10_000], help="sizes of the folder")
    parser.add_argument("--caption", type=int, metavar="N", help="caption only the first N images (default: all)")
    parser.add_argument("--model", help="a bundled model or a checkpoint folder (default: the default model)")
    parser.add_argument("--scratch", type=Path, help="where to make the folder (default: the system's place)")
    parser.add_argument("--in-folder", type=Path, help=argparse.SUPPRESS)  # what the processes are told
    options = parser.parse_args()
    if options.in_folder is not None:
        print(json.dumps(run(options.in_folder, options.model, options.caption)))
        return
    print("images     first caption   images/s   peak memory")
    peaks = []
    for images in options.images:
        with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
            folder = Path(scratch) / "photos"
            make_folder(folder, images)
            passed = [*(["--model", options.model] if options.model else [])]
            passed += ["--caption", str(options.caption)] if options.caption else []
            command = [sys.executable, __file__, "--in-folder", str(folder), *passed]
            found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        peaks.append(found["memory"])
        print(f"{images:<10,} {found['first']:9.2f} s {found['rate']:12.1f} {found['memory']:10.0f} MB", flush=True)
    print(f"peak memory of the last against the first: {peaks[-1] / peaks[0]:.3f}")


if __name__ == "__main__":
    main()
