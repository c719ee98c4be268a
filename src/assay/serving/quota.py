"""How much a project keeps: its files, and the parts of its uploads that are not completed.

What lies there is added up from the logs once a minute, and again before anybody is refused; what is on its way
is counted while it comes.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from assay.base.clock import Clock
from assay.serving.files import FileShelf
from assay.serving.refusal import RefusedError
from assay.serving.uploads import UploadShelf

COUNTED_EVERY_S = 60.0
COUNTED_AGAIN_S = 2.0
LEAST_BYTES = 4096
"""What a file takes, however short."""


class ProjectStorage:
    """The bytes that each project keeps; safe to share between threads."""

    def __init__(self, files: FileShelf, uploads: UploadShelf, clock: Clock, max_bytes: float) -> None:
        """A project may keep `max_bytes`."""
        self._files = files
        self._uploads = uploads
        self._clock = clock
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, int]] = {}
        """Project -> when that was added up, and its bytes then and since."""
        self._coming = Counter[str]()

    @contextmanager
    def room(self, project: str, param: str) -> Iterator[Callable[[int], None]]:
        """A function that takes room for further bytes, and raises `RefusedError` where there is none. They
        count as kept behind the context, unless it ends with an error."""
        num_taken = 0

        def take(num_bytes: int) -> None:
            nonlocal num_taken
            self.refuse_beyond(project, num_bytes, param)
            with self._lock:
                self._coming[project] += num_bytes
            num_taken += num_bytes

        is_kept = False
        try:
            yield take
            is_kept = True
        finally:
            with self._lock:
                self._coming[project] -= num_taken
                if is_kept and project in self._kept:
                    at_s, num_bytes = self._kept[project]
                    self._kept[project] = at_s, num_bytes + max(num_taken, LEAST_BYTES)

    def refuse_beyond(self, project: str, num_bytes: int, param: str) -> None:
        """Raise `RefusedError` where there is no room for so many bytes more."""
        for known_s in (COUNTED_EVERY_S, COUNTED_AGAIN_S):
            used = self._bytes_of(project, known_s) + self._coming[project]
            if used + num_bytes <= self._max_bytes:
                return
        raise RefusedError(
            f"This project keeps {used / 1e9:.3f} GB of files, and may keep {self._max_bytes / 1e9:.6g} GB. "
            "Delete some (files.delete), or have 'project_storage_gb' of the home's settings.yaml raised.",
            param=param,
            code="storage_limit_reached",
        )

    def _bytes_of(self, project: str, known_s: float) -> int:
        now_s = self._clock.now_s()
        at_s, num_bytes = self._kept.get(project, (0.0, 0))
        if now_s - at_s > known_s:
            num_bytes = self._added_up(project, now_s)
            self._kept[project] = now_s, num_bytes
        return num_bytes

    def _added_up(self, project: str, now_s: float) -> int:
        files, uploads = self._files.shelf, self._uploads.shelf
        kept = (state for _, state in files.states(files.newest(project)) if state.is_there(now_s))
        begun = (state for _, state in uploads.states(uploads.open_ids()) if state.created.project == project)
        return sum(max(LEAST_BYTES, state.created.num_bytes) for state in kept) + sum(
            max(LEAST_BYTES, part.num_bytes) for state in begun for part in state.parts
        )
