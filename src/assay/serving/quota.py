"""Storage quota of projects: files and parts of pending uploads.

Usage is summed from the logs once a minute, and again before a request is rejected. Bytes being uploaded are added as
they arrive.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from assay.base.clock import Clock
from assay.serving.api_error import ApiError
from assay.serving.files import FileRepository
from assay.serving.uploads import UploadRepository

RECOUNT_S = 60.0
MIN_RECOUNT_S = 2.0
MIN_FILE_BYTES = 4096
"""Every file counts at least this much."""


class ProjectStorage:
    """Stored bytes by project; thread-safe."""

    def __init__(self, files: FileRepository, uploads: UploadRepository, clock: Clock, max_bytes: float) -> None:
        """`max_bytes`: quota per project."""
        self._files = files
        self._uploads = uploads
        self._clock = clock
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._stored: dict[str, tuple[float, int]] = {}
        """Project -> (time of the sum, bytes then and since)."""
        self._coming = Counter[str]()

    @contextmanager
    def reserve(self, project: str, param: str) -> Iterator[Callable[[int], None]]:
        """Yield a function that reserves bytes and raises `ApiError` over the quota.

        After the context the bytes count as stored, unless it ends with an error.
        """
        num_reserved = 0

        def reserve_bytes(num_bytes: int) -> None:
            nonlocal num_reserved
            self.check_quota(project, num_bytes, param)
            with self._lock:
                self._coming[project] += num_bytes
            num_reserved += num_bytes

        is_stored = False
        try:
            yield reserve_bytes
            is_stored = True
        finally:
            with self._lock:
                self._coming[project] -= num_reserved
                if is_stored and project in self._stored:
                    at_s, num_bytes = self._stored[project]
                    self._stored[project] = at_s, num_bytes + max(num_reserved, MIN_FILE_BYTES)

    def check_quota(self, project: str, num_bytes: int, param: str) -> None:
        """Raise `ApiError` if `num_bytes` more exceed the quota."""
        for known_s in (RECOUNT_S, MIN_RECOUNT_S):
            used = self._bytes_of(project, known_s) + self._coming[project]
            if used + num_bytes <= self._max_bytes:
                return
        raise ApiError(
            f"This project stores {used / 1e9:.3f} GB of files; its quota is {self._max_bytes / 1e9:.6g} GB. "
            "Delete files (files.delete), or raise 'project_storage_gb' in the home's settings.yaml.",
            param=param,
            code="storage_limit_reached",
        )

    def _bytes_of(self, project: str, known_s: float) -> int:
        now_s = self._clock.now_s()
        at_s, num_bytes = self._stored.get(project, (0.0, 0))
        if now_s - at_s > known_s:
            num_bytes = self._added_up(project, now_s)
            self._stored[project] = now_s, num_bytes
        return num_bytes

    def _added_up(self, project: str, now_s: float) -> int:
        files, uploads = self._files, self._uploads
        stored = (state for _, state in files.states(files.newest(project)) if state.is_available(now_s))
        pending = (state for _, state in uploads.states(uploads.open_ids()) if state.created.project == project)
        return sum(max(MIN_FILE_BYTES, state.created.num_bytes) for state in stored) + sum(
            max(MIN_FILE_BYTES, part.num_bytes) for state in pending for part in state.parts
        )
