"""Runs: train one, find those on record, go on with one."""

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from assay.api.commands import run_command, start_training
from assay.api.recipes import Recipe
from assay.api.report import Report
from assay.base.clock import SystemClock
from assay.base.errors import ConfigError, regular
from assay.cli.parameters import current_home, ledger_with_runs
from assay.cli.wording import worded
from assay.records.audit import AuditReport
from assay.records.benchmark import BenchmarkResult
from assay.records.replay import ReplayReport
from assay.records.run import AT_WORK, RunStatus
from assay.reporting.views.runs.run import RunView
from assay.store.metrics.curves import Curve
from assay.workflows.processes.foreground import flags_of

if TYPE_CHECKING:
    from assay.reporting.views.check import CheckView
    from assay.reporting.views.runs.run_list import RunLine

RecipeSource = str | Path | Mapping[str, Any] | Recipe
POLL_S = 0.5


@worded
class Run:
    """A run: what it did, and what can be done with it."""

    def __init__(self, run_id: str) -> None:
        """`run_id`: its id or the beginning of it. Raises `AssayError` if there is no such run."""
        self._home = current_home()
        self.id = self._home.meant_run(run_id)
        """Its whole id."""
        self.folder = self._home.run_dir(self.id)
        """Where its records are; never change them."""

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()

    @property
    def status(self) -> RunStatus:
        """What the run does now, or how it ended, such as `running` or `succeeded`."""
        return self.view().status

    def view(self) -> RunView:
        """Return the run's facts now, as `assay runs show --json` prints them."""
        from assay.reporting.views.runs.run import run_view

        with ledger_with_runs(self._home, self.id) as ledger:
            return run_view(ledger, self.id, self._home.settings(), has_all_metrics=True)

    def report(self) -> Report[RunView]:
        """Return what `assay runs show` shows."""
        from assay.reporting.documents.runs.run import run_document
        from assay.reporting.views.runs.run_page import run_page

        with ledger_with_runs(self._home, self.id) as ledger:
            page = run_page(ledger, self.id, self._home.settings())
            return Report(page.view, run_document(page, now_s=SystemClock().now_s()))

    def curve(self, metric: str = "loss", *, max_points: int = 2_000) -> Curve:
        """Return a metric's committed points by step. Of more than `max_points`, the extremes always stay.

        Raises `AssayError` for a metric that the run never logged.
        """
        from assay.store.metrics.curves import metric_series

        known = self.view().metrics
        if metric not in known:
            raise ConfigError(f"run '{self.id}' has no metric '{metric}'. It has: {', '.join(known) or 'none yet'}.")
        with ledger_with_runs(self._home, self.id) as ledger:
            return metric_series(ledger, self.id, metric, max_points=max_points)

    def audit(self, *, deep: bool = False) -> Report[AuditReport]:
        """Prove from receipts that each row was learned exactly once up to the last commit; keep the report.

        `deep`: read the weights of every commit, not only those of the last one.
        """
        from assay.cli.runs.audit import print_audit
        from assay.workflows.audit import audit_and_record

        report, *_ = audit_and_record(self._home, self.id, check_shards=True, weights="all" if deep else "last")
        return Report(report, partial(print_audit, report), of=("runs", "audit"))

    def replay(self, step: int, *, through: int | None = None) -> Report[ReplayReport]:
        """Make a step again on one process, or the steps `through` another, and compare every bit with the record."""
        from assay.cli.runs.replay import print_replay

        options = [] if through is None else [f"--through={through}"]
        found = run_command("runs", "replay", self.id, f"--step={step}", *options, accepts=(0, 1))
        report = ReplayReport.from_json(found, source=f"the replay of step {step}")
        return Report(report, partial(print_replay, report))

    def evaluate(self, suite: str | Path | None = None) -> list[BenchmarkResult]:
        """Evaluate the commits that the recipe selects, by its suite or another one; return all results of the run."""
        run_command("eval", "work", self.id, *([] if suite is None else [f"--suite={suite}"]))
        with ledger_with_runs(self._home, self.id) as ledger:
            return ledger.benchmark_results(self.id)

    def export(self, folder: str | Path, *, step: int | None = None, **options: Any) -> Path:
        """Write the model of a commit to a new folder that transformers loads, and return the folder.

        `step`: of the commit, by default the last one. `options`: those of `assay runs export`, such as `force=True`.
        """
        run_command("runs", "export", self.id, f"--out={folder}", *flags_of({"step": step, **options}))
        return Path(folder)

    def resume(self, *, workers: int | str = 1, **options: Any) -> "Run":
        """Continue from the last commit, on any number of workers; return the run when it has ended.

        `workers` and `options`: as in `train`.
        """
        start_training([f"--resume={self.id}"], workers, options)
        return self

    def fork(self, *overrides: str, step: int | None = None, workers: int | str = 1, **options: Any) -> "Run":
        """Train on from a commit, as a new run with a changed recipe; return it when it has ended.

        `overrides`, `workers` and `options`: as in `train`. `step`: of the commit, by default the last one.
        """
        commit = self.id if step is None else f"{self.id}@{step}"
        return Run(start_training([f"--from={commit}", *overrides], workers, options))

    def stop(self) -> None:
        """Ask the run to commit after its current step and stop, and say so; do not wait for it."""
        print(run_command("train", "stop", self.id, is_json=False), end="", file=sys.stderr)

    def wait(self, timeout_s: float | None = None) -> "Run":
        """Wait until the run has ended, and has been evaluated. Raises `TimeoutError` after `timeout_s` seconds."""
        from assay.launchers.launches import has_process

        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while (status := self.status) in AT_WORK or has_process(self._home, self.id):
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise TimeoutError(f"run '{self.id}' is {status} after {timeout_s} s.")
            time.sleep(POLL_S)
        return self


@overload
def train(
    recipe: RecipeSource, *overrides: str, workers: int | str = 1, check: Literal[False] = False, **options: Any
) -> Run: ...
@overload
def train(
    recipe: RecipeSource, *overrides: str, workers: int | str = 1, check: bool, **options: Any
) -> "Report[CheckView]": ...
@worded
def train(
    recipe: RecipeSource, *overrides: str, workers: int | str = 1, check: bool = False, **options: Any
) -> "Run | Report[CheckView]":
    """Train a recipe, then evaluate and audit it; return the run when it has ended.

    `recipe`: a YAML file, its values, or a `Recipe`. `overrides`: such as `trainer.epochs=2`. `workers`: a number, or
    `"2..4"`. `check`: start nothing, and return a report of steps, time, memory and warnings. `options`: those of
    `assay train` with underscores, such as `run_id="first"`; with `on="background"` or a scheduler, the run is
    returned once it is launched. Raises `AssayError` if the recipe is wrong or the run fails.
    """
    with _recipe_file(recipe, overrides) as arguments:
        if not check:
            return Run(start_training(arguments, workers, options))
        printed = run_command("train", *arguments, f"--workers={workers}", "--check", *flags_of(options))
    from assay.reporting.terminal.check import check_lines
    from assay.reporting.views.check import CheckView

    view = CheckView.model_validate_json(printed)
    return Report(view, lambda: print("\n".join(check_lines(view))), of=("train",))


@contextmanager
def _recipe_file(recipe: str | Path | Mapping[str, Any] | Recipe, overrides: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the file of a recipe, and the overrides to it."""
    from assay.workflows.pipeline.config import is_pipeline

    if isinstance(recipe, str | Path):
        if is_pipeline(regular(Path(recipe))):
            raise ConfigError(f"{recipe}: a pipeline, not a recipe. In a shell, 'assay train' trains its stages.")
        yield [str(recipe), *overrides]
        return
    checked = Recipe(recipe.values if isinstance(recipe, Recipe) else recipe, *overrides)
    with tempfile.TemporaryDirectory() as folder:
        yield [str(checked.save(Path(folder) / "recipe.yaml"))]


class RunList(list[Run]):
    """Runs, the newest first; `print` and a notebook show them as `assay runs list` does."""

    def __init__(self, lines: Sequence["RunLine"]) -> None:
        from assay.reporting.documents.runs.run_list import runs_table
        from assay.reporting.terminal.table import print_table

        super().__init__(Run(line.run_id) for line in lines)
        table = runs_table(lines, now_s=SystemClock().now_s())
        self._report = Report(lines, lambda: print_table(table) if lines else print("no runs"))

    def __repr__(self) -> str:
        return repr(self._report)

    def _repr_html_(self) -> str:
        return self._report._repr_html_()


def runs() -> RunList:
    """Return the runs on record, the newest first."""
    from assay.reporting.views.runs.run_list import run_lines

    if (home := current_home()).find_ledger() is None:
        return RunList([])
    with ledger_with_runs(home) as ledger:
        return RunList(sorted(run_lines(ledger), key=lambda line: -line.created))


def run(run_id: str) -> Run:
    """Return a run on record.

    `run_id`: its id or the beginning of it. Raises `AssayError` if there is no such run, or several.
    """
    return Run(run_id)
