"""What every page gets: the home, the API's state, and what watches both."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Self

from assay.base.clock import Clock
from assay.dashboard.access import Access, Reader, visible_runs
from assay.dashboard.page import PageError
from assay.dashboard.watch import Look, Watch
from assay.serving.openai.app_state import AppState
from assay.store.home import Home
from assay.store.ledger.ledger import Ledger
from assay.workflows.rebuild import fold_in

_COUNTED = ("runs", "attempts", "launches", "evaluations", "benchmark_results", "decisions", "run_notes")
"""Tables whose new rows change the list of runs."""
_OF_A_RUN = ("*", "log/*", "attempts/*", "metrics/*/*", "evaluations/*", "benchmarks/*")
"""Files of a run that change with what its page shows."""


class Dashboard(NamedTuple):
    """The state of all pages of one server."""

    home: Home
    api: AppState
    clock: Clock
    access: Access
    watch: Watch
    reader: Reader = Reader()
    """Whose pages are made: the ledger shows this reader's runs only."""

    @classmethod
    def of(cls, home: Home, api: AppState) -> Self:
        """Return the dashboard of a home and its API."""
        access = Access(api.files.store, api.keys, api.clock)
        return cls(home, api, api.clock, access, Watch(_looks(home, api.clock)))

    @contextmanager
    def ledger(self, *run_ids: str) -> Iterator[Ledger]:
        """Open the ledger as the reader sees it, with the given runs recorded in it. Raises `PageError` if a run does
        not exist, or belongs to another project."""
        shown = visible_runs(self.reader, self.api)
        with self.home.open_ledger(shown=shown) as ledger:
            for run_id in run_ids:
                if shown is not None and not shown.shows(run_id):
                    raise PageError(404, f"no run '{run_id}' in {self.home.folder}.")
                if ledger.has_run(run_id):
                    continue
                if not self.home.has_run(run_id):
                    raise PageError(404, f"no run '{run_id}' in {self.home.folder}.")
                fold_in(self.home, run_id, ledger)
            yield ledger


def _looks(home: Home, clock: Clock) -> dict[str, Look]:
    """Return how each kind of topic is looked at."""

    def runs(_: str) -> object:
        with home.open_ledger() as ledger, ledger.reading() as connection:
            counts = [list(connection.execute(f"SELECT COUNT(*) FROM {table}")) for table in _COUNTED]
            return counts, ledger.last_writes()

    def run(run_id: str) -> object:
        files = (path for pattern in _OF_A_RUN for path in sorted(home.run_dir(run_id).glob(pattern))[-64:])
        return [(file.stat().st_mtime_ns, file.stat().st_size) for file in files]

    return {"runs": runs, "run": run, "minute": lambda _: int(clock.now_s() / 60)}
