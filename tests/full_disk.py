"""A small file system that a test fills."""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Disk(NamedTuple):
    """A file system of its own."""

    folder: Path

    def fill(self, *, reserve: int) -> None:
        """Until so many bytes are left."""
        filler = self.folder / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        os.truncate(filler, max(0, filler.stat().st_size - reserve))

    def make_room(self) -> None:
        """Undo it."""
        (self.folder / "filler").unlink()
