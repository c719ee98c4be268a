"""The folder of runs, campaigns and the ledger: one value, built at process start and passed down.

    $ASSAY_HOME, else runs/
      RUN/                 a run's folder: run.json and all that the run left
      campaigns/NAME/      a campaign's
      api/                 files and jobs of `assay serve`
      api.db               a table of those jobs, which may be deleted
      calibrations/        what forecasts of other world sizes follow from
      followed/            programs and coverage files that the dashboard shows
      settings.yaml        prices, and who is told what happens (optional)
      ledger.db            the index over them, unless $ASSAY_LEDGER names another

The environment is read at the edges only (the command line, a rank's process, a worker's), so what is below can
be told of any home, and of two at once.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from assay.base.errors import AssayError, ConfigError
from assay.base.names import checked_name
from assay.store.known_runs import RUN_FILE, match_run_id, run_ids_in
from assay.store.ledger.url import checked_url, sqlite_file

if TYPE_CHECKING:
    from assay.records.pipeline import Pipeline
    from assay.records.run import Run
    from assay.store.ledger.ledger import Ledger
    from assay.store.ledger.visible_runs import VisibleRuns
    from assay.store.objects import ObjectStore
    from assay.store.settings import Settings

CAMPAIGNS = "campaigns"
API = "api"
"""What `assay serve` and `assay serve worker` keep: files, jobs, datasets."""
CALIBRATIONS = "calibrations"
"""What `assay throughput` has measured."""
FOLLOWED = "followed"
"""Which programs and coverage files the dashboard shows."""
CAMPAIGN_FILE = "campaign.json"
"""A campaign's declaration, in its folder."""
PIPELINE_FILE = "pipeline.json"
"""A pipeline's, in the folder that its campaign has, or would have."""


@dataclass(frozen=True)
class Home:
    """One folder of runs with its ledger."""

    folder: Path
    """The folder as given, as shown in messages."""
    ledger: str
    """The ledger's URL, checked."""

    @classmethod
    def at(cls, folder: Path, ledger: str | None = None) -> Self:
        """Return the home in a folder. The ledger defaults to `ledger.db` in it."""
        return cls(folder, checked_url(ledger or f"sqlite:///{folder.absolute() / 'ledger.db'}"))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Return the home given by environment variables. Call it only at process start."""
        variables = os.environ if environment is None else environment
        return cls.at(Path(variables.get("ASSAY_HOME") or "runs"), variables.get("ASSAY_LEDGER"))

    def environment(self) -> dict[str, str]:
        """Return environment variables that give another process this home."""
        return {"ASSAY_HOME": str(self.folder.resolve()), "ASSAY_LEDGER": self.ledger}

    # Runs and campaigns

    def run_dir(self, run_id: str) -> Path:
        """Return the folder of a run or of results under such a name; it may not exist."""
        if run_id in (CAMPAIGNS, API, CALIBRATIONS, FOLLOWED):
            of = {API: "the API", FOLLOWED: "the dashboard"}.get(run_id, f"all {run_id}")
            raise ConfigError(f"'{run_id}' is the folder of {of}, not a run. Choose another name.")
        return (self.folder / checked_name(run_id, of="the run's id")).resolve()

    def store_of(self, run_id: str) -> "ObjectStore":
        """Return the run's folder as a store."""
        from assay.store.objects import open_store

        return open_store(str(self.run_dir(run_id)))

    def has_run(self, run_id: str) -> bool:
        """Return whether a run with this id exists."""
        return (self.run_dir(run_id) / RUN_FILE).is_file()

    def name_conflict(self, run_id: str) -> ConfigError:
        """Return the error for a new run with the id of an existing one."""
        return ConfigError(
            f"run '{run_id}' exists in {self.folder}. Continue it with "
            f"'assay train --resume {run_id}', or choose another --run-id."
        )

    def run_file(self, run_id: str) -> Path:
        """Return the path of a run's record. Raises `ConfigError` if there is none."""
        path = self.folder / run_id / RUN_FILE
        if not self.has_run(run_id):
            raise ConfigError(f"{path}: no such run. 'assay runs' lists those that there are.")
        return path

    def run(self, run_id: str) -> "Run":
        """Load a run, with its paths adjusted to where its folder is now."""
        from assay.store.run_location import opened_in, written_in  # here, as all of a record is large to import

        folder, path = self.run_dir(run_id), self.run_file(run_id)
        run = written_in(folder)
        if run.run_id != run_id:
            raise ConfigError(
                f"{path}: this is run '{run.run_id}', whose folder was renamed or copied. A run keeps its id: "
                f"name the folder {run.run_id} again, or remove it if it is a copy."
            )
        return opened_in(run, folder)

    def meant_run(self, id_or_prefix: str) -> str:
        """Return the id of the matching run in the folder or the ledger. Raises `ConfigError` without a match."""
        if not isinstance(id_or_prefix, str):
            raise ConfigError(f"expected the id of a run, or its beginning; found {id_or_prefix!r:.80}.")
        file = self.ledger_file()
        if file is None or self.has_run(id_or_prefix):
            return id_or_prefix  # a server's runs are found when it is asked
        known = run_ids_in(self.folder, file)
        if known is None:
            return id_or_prefix  # who opens the ledger says what is wrong with it
        if not known:
            raise ConfigError(f"no run '{id_or_prefix}': there are no runs in {self.folder}. Is $ASSAY_HOME right?")
        return match_run_id(id_or_prefix, known)

    def has_results(self, run_id: str) -> bool:
        """Return whether benchmark results may exist under this name, which need not be a run's."""
        file = self.ledger_file()
        known = None if file is None else run_ids_in(self.folder, file, table="benchmark_results")
        return known is None or run_id in known or self.run_dir(run_id).is_dir()

    def locating(self) -> "Callable[[Run], Run]":
        """Return a function that adjusts the paths of a ledger's run to this home, if its folder is here."""
        here = str(self.folder.resolve())

        def located(run: "Run") -> "Run":
            # Most lie where their record says: of thousands, that is found out by one look at each.
            if run.run_dir == os.path.join(here, run.run_id) and not os.path.islink(run.run_dir):  # noqa: PTH114,PTH118
                return run
            from assay.store.run_location import opened_in

            folder = self.run_dir(run.run_id)
            return opened_in(run, folder) if (folder / RUN_FILE).is_file() else run

        return located

    def runs(self) -> "list[Run]":
        """Return all readable runs, by id."""
        return self.readable_runs()[0]

    def readable_runs(self) -> "tuple[list[Run], list[str]]":
        """Return all readable runs, and a message for each unreadable one."""
        runs, problems = [], []
        for path in sorted(self.folder.glob(f"*/{RUN_FILE}")):
            try:
                runs.append(self.run(path.parent.name))
            except (AssayError, OSError) as error:
                problems.append(f"run '{path.parent.name}' is left out: {error}")
        return runs, problems

    @property
    def campaigns(self) -> Path:
        """Folder of campaigns; it may not exist."""
        return (self.folder / CAMPAIGNS).resolve()

    def campaign_names(self) -> list[str]:
        """Return the names of declared campaigns."""
        return sorted(path.parent.name for path in self.campaigns.glob(f"*/{CAMPAIGN_FILE}"))

    def campaign_dir(self, name: str) -> Path:
        """Return a campaign's folder. Raises `ConfigError` if it was not declared."""
        folder = self.campaigns / checked_name(name, of="the campaign's name")
        if not (folder / CAMPAIGN_FILE).is_file():
            known = ", ".join(self.campaign_names()) or "none"
            raise ConfigError(f"{folder}: no such campaign; there is {known}. 'assay decide run FILE' begins one.")
        return folder

    def has_pipeline(self, name: str) -> bool:
        """Return whether a pipeline was declared."""
        return (self.campaigns / name / PIPELINE_FILE).is_file()

    def pipeline(self, name: str) -> "Pipeline":
        """Load a declared pipeline."""
        from assay.records.pipeline import Pipeline

        path = self.campaigns / name / PIPELINE_FILE
        return Pipeline.from_json(path.read_bytes(), source=path)

    @property
    def calibrations(self) -> Path:
        """Folder of calibrations; it may not exist."""
        return (self.folder / CALIBRATIONS).resolve()

    @property
    def followed(self) -> Path:
        """Folder of the entries of `store.followed`; it may not exist."""
        return (self.folder / FOLLOWED).resolve()

    @property
    def api(self) -> Path:
        """Folder of the API's state; it may not exist."""
        return (self.folder / API).resolve()

    @property
    def api_table(self) -> Path:
        """SQLite cache of the API's finished jobs; rebuilt if missing."""
        return self.folder.resolve() / f"{API}.db"

    def settings(self) -> "Settings":
        """Return the settings for all of its runs."""
        from assay.store.settings import settings_in

        return settings_in(self.folder)

    # The ledger

    def open_ledger(self, *, shown: "VisibleRuns | None" = None) -> "Ledger":
        """Open the ledger; create it if it does not exist. `shown` limits what is read."""
        from assay.store.ledger.ledger import open_ledger  # here, for its database is large to import

        return open_ledger(self.ledger, located=self.locating(), shown=shown)

    def find_ledger(self) -> "Ledger | None":
        """Open the ledger, or return None if its SQLite file does not exist."""
        path = self.ledger_file()
        return None if path is not None and not path.exists() else self.open_ledger()

    def ledger_file(self) -> Path | None:
        """Return the file of a SQLite ledger; None for a server."""
        return sqlite_file(self.ledger)
