"""What is derived from a record in its folder, kept up to date: tables, and trees of sidecars."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from pathlib import Path

from captioner.captioning.output.sidecars import Sidecars, sidecar_path
from captioner.captioning.output.tables import NAMINGS, SIDECARS, TABLES
from captioner.captioning.output.written_files import WrittenFiles


class Derived:
    """The derived files of a folder; those that others have changed stay as they are and are in `written.left`."""

    def __init__(self, out: Path, naming: str = "full") -> None:
        self.out = out
        self.written = WrittenFiles(out)
        self.sidecars = Sidecars(self.written, naming)

    def bring_up_to_date(self, formats: Iterable[str]) -> None:
        """Write what is asked for, and what is there already."""
        formats = set(formats)
        for format, (name, write) in TABLES.items():
            if format in formats or self.written.holds(self.out / name):
                with self.written.replacing(self.out / name) as file:
                    if file is not None:
                        write(self.out, file)
        for kind in SIDECARS:
            if kind in formats or self.written.holds(self.out / kind):
                self.sidecars.write_tree(self.out, kind)
        if self.written.is_elsewhere({*(name for name, _ in TABLES.values()), *SIDECARS}):
            self.sidecars.renew_beside(self.out)

    def forget(self, name: str) -> None:
        """Remove the sidecars of an image that is gone."""
        for kind, naming in product(SIDECARS, NAMINGS):
            self.sidecars.remove(sidecar_path(Path(name), kind, naming))
            self.sidecars.remove(Sidecars(self.written, naming).tree_path(self.out, kind, name))
