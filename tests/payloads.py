"""What somebody who means harm would put into a file that we open: proof that it ran, and nothing worse."""

import os
from pathlib import Path


class Payload:
    """Unpickled, it makes a folder."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self._marker),)

    def ran(self) -> bool:
        """Whether anybody unpickled it."""
        return self._marker.exists()
