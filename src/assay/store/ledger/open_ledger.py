"""One open ledger for all pages of readers who see everything: to open one takes longer than most reads."""

import threading
from contextlib import AbstractContextManager, nullcontext

from assay.base.errors import StoreError
from assay.store.home import Home
from assay.store.ledger.ledger import Ledger
from assay.store.ledger.visible_runs import VisibleRuns


class OpenLedger:
    """The ledger of a home, opened again when another file is in its place."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._ledger: Ledger | None = None
        self._file = self._file_now()
        """Device and inode of the open file, or of the one that was there at the start."""

    def shown(self, runs: VisibleRuns | None) -> AbstractContextManager[Ledger]:
        """Open the ledger for a reader who sees these runs, or all. Raises `StoreError` if its file is gone."""
        everything = self._opened()
        return nullcontext(everything) if runs is None else self._home.open_ledger(shown=runs)

    def _opened(self) -> Ledger:
        with self._lock:
            file = self._file_now()
            if self._ledger is None or file != self._file:
                if file is None and self._file is not None:
                    raise StoreError(
                        f"ledger {self._home.ledger_file()}: the file is gone. Put it back, or write it again from the "
                        "folders of the runs: 'assay runs --rebuild'."
                    )
                if self._ledger is not None:
                    self._ledger.close()
                self._ledger = self._home.open_ledger()
                self._file = self._file_now()
            return self._ledger

    def _file_now(self) -> tuple[int, int] | None:
        path = self._home.ledger_file()
        if path is None:
            return None
        try:
            found = path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino
