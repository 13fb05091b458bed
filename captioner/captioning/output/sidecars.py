"""A file for each image that says its caption: plain text, or XMP as photo programs read it.

They lie in a tree of the output folder, or beside the images. Those of other people are never replaced.
"""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path

from captioner.captioning.output import xmp
from captioner.captioning.output.tables import NAMINGS, SIDECARS, make_parent, tree_path
from captioner.captioning.output.written_files import WrittenFiles
from captioner.captioning.records import CAPTIONS, read_lines
from captioner.files import digest, read_whole, write_whole


def sidecar_path(image: Path, kind: str, naming: str) -> Path:
    """Return the path of an image's sidecar beside it: `cat.jpg.txt`, or `cat.txt` where it has the stem alone."""
    return image.with_suffix(f".{kind}") if naming == "stem" else image.with_name(f"{image.name}.{kind}")


def _unfinished(path: Path) -> Path:
    return path.with_name(f".captioner-{os.getpid()}.unfinished")


class Sidecars:
    """Writes the sidecars of one run; those that were not written, because they are others', are in `written.left`.

    Where images share a stem, as `cat.jpg` and `cat.png` do, the first has the sidecar that is named by it.
    """

    def __init__(self, written: WrittenFiles, naming: str = "full") -> None:
        self.written, self.naming = written, naming
        self.taken: dict[Path, Path] = {}  # whose each sidecar is

    def write_beside(self, image: Path, kind: str, text: str) -> bool:
        """Write a caption beside its image; tell whether the sidecar says it now."""
        path = sidecar_path(image, kind, self.naming)
        if self.taken.setdefault(path, image) != image:
            path = sidecar_path(image, kind, "full")
        return self._write(path, kind, text, _unfinished(path))

    def renew_beside(self, out: Path) -> None:
        """Bring the sidecars beside images that earlier runs wrote up to date with the record; none is made."""
        owners: dict[Path, str] = {}
        for line in read_lines(out / CAPTIONS):
            for kind, naming in product(SIDECARS, NAMINGS):
                path = sidecar_path(Path(line.name), kind, naming)
                if not self.written.knows(path) or not os.path.lexists(path):
                    continue
                if owners.setdefault(path, line.name) == line.name:
                    self._write(path, kind, line.record["text"], _unfinished(path))

    def is_beside(self, image: Path, kind: str) -> bool:
        """Tell whether an image has a sidecar already."""
        path = sidecar_path(image, kind, self.naming)
        if kind == "txt" or not path.is_file():
            return os.path.lexists(path)
        try:
            return xmp.description(read_whole(path, most=xmp.MAX_PACKET)) is not None
        except (OSError, ValueError):
            return True

    def write_tree(self, out: Path, kind: str) -> None:
        """Bring the tree of sidecars in `out` up to date with its record."""
        for line in read_lines(out / CAPTIONS):
            path = self.tree_path(out, kind, line.name)
            make_parent(out, path)
            # There are as many as images, and the record makes them anew: no need to wait for the disk each time.
            self._write(path, kind, line.record["text"], out / "sidecar.unfinished")

    def tree_path(self, out: Path, kind: str, name: str) -> Path:
        """Return the path of an image's sidecar in the tree of `out`."""
        full = out / kind / tree_path(name, f".{kind}")
        if self.naming == "full":
            return full
        path = out / kind / tree_path(os.path.splitext(name)[0], f".{kind}")
        return path if self.taken.setdefault(path, full) == full else full

    def remove(self, path: Path) -> None:
        """Remove a sidecar that is as the program wrote it."""
        self.written.remove(path)

    def _write(self, path: Path, kind: str, text: str, unfinished: Path) -> bool:
        if kind == "txt":
            return self.written.write(path, f"{text}\n".encode(), unfinished=unfinished)
        if not os.path.lexists(path):
            self.written.note(path, digest(text.encode()))
            return self.written.write(path, xmp.make_packet(text), unfinished=unfinished)
        return self._merge(path, text, unfinished)

    def _merge(self, path: Path, text: str, unfinished: Path) -> bool:
        """Put a caption into a sidecar that is there, and nothing else; leave one that says something of its own."""
        try:
            if path.is_symlink() or not path.is_file():
                raise ValueError("not a regular file")
            before = read_whole(path, most=xmp.MAX_PACKET)
            packet, says = xmp.merge(before, text, lambda said: self.written.is_noted(path, digest(said.encode())))
        except ValueError:
            packet, says, before = b"", False, b""
        if packet != before:
            self.written.note(path, digest(text.encode()))
            if self.written.may_replace(path):
                self.written.note(path, digest(packet))
            write_whole(path, packet, unfinished=unfinished, sync=False)
        if not says:
            self.written.left.append(path)
        return says
