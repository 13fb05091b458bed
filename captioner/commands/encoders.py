"""`captioner inspect` and `captioner encoders`: what encoders there are, and what they see."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from captioner.commands.arguments import add_encoder_arguments, encoder_config, no_images
from captioner.commands.messages import complain, say
from captioner.commands.parser import add_command
from captioner.files import printable
from captioner.images.finding import find_images
from captioner.images.opening import ImageError, open_image


def add_inspect(commands: Any) -> None:
    """Add `captioner inspect`."""
    parser = add_command(commands, "inspect", run_inspect, "show the regions and the classes that an encoder sees")
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="images or folders of images")
    parser.add_argument("-r", "--recursive", action="store_true", help="search subfolders too")
    add_encoder_arguments(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="also draw a figure of each image into this folder")


def run_inspect(options: argparse.Namespace) -> int:
    """Print the geometry and ImageNet classes of images; draw them on request."""
    config = encoder_config(options)
    paths = list(find_images(options.paths, recursive=options.recursive))
    if not paths:
        raise no_images([str(path) for path in options.paths], recursive=options.recursive)
    from captioner.model.encoders.encoder import load_encoder
    from captioner.model.encoders.inspection import draw_inspection, inspect_images

    encoder = load_encoder(config, progress=True)
    failed = False
    names = _distinct_names(paths)
    for path, name, seen in zip(paths, names, inspect_images(paths, encoder), strict=True):
        if isinstance(seen, ImageError):
            complain(seen)
            failed = True
            continue
        rows, columns = seen.evidence.shape
        classes = ", ".join(f"{label} {probability:.0%}" for label, probability in seen.classes)
        size = f"{seen.geometry.width} x {seen.geometry.height}"
        print(f"{printable(str(path))}\t{size}\t{rows} x {columns} regions\t{classes}", flush=True)
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            draw_inspection(open_image(path), seen).savefig(options.out / name, dpi=150)
    if options.out:
        say(f"figures of the regions, and of the evidence for the class, are in {options.out}/")
    return int(failed)


def _distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return a PNG name for each path, no two alike: a/1.jpg and b/1.jpg become 1.jpg.png and 1.jpg-2.png."""
    taken: set[str] = set()
    names = []
    for path in paths:
        number = 1
        name = f"{path.name}.png"
        while name in taken:
            number += 1
            name = f"{path.name}-{number}.png"
        taken.add(name)
        names.append(name)
    return names


def add_encoders(commands: Any) -> None:
    """Add `captioner encoders`."""
    add_command(commands, "encoders", run_encoders, "list the encoders")


def run_encoders(_: argparse.Namespace) -> int:
    """Print the names of encoders, one per line."""
    from captioner.model.encoders.backbones import names

    print("\n".join([*names(), "timm/NAME"]))
    return 0
