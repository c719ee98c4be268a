"""`assay triage data`: find out which data changed."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.errors import ConfigError
from assay.cli.parameters import current_home, json_option, ledger_with_runs
from assay.cli.triage.parameters import print_result

if TYPE_CHECKING:
    from assay.records.data_changes import MovedMetric


@click.command()
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@json_option
def data(before: str, after: str, as_json: bool) -> None:
    """Show what changed from the data BEFORE to the data AFTER, and by how much.

    Each is a dataset, a run (its dataset), or a Parquet, Arrow, CSV or JSON lines file. Compared are columns
    (missing and new values, shares, units, distributions), duplicates, lengths and cuts, the template around
    texts, token ids, the loss mask, and labels that no longer fit. Changes need a minimum size, not only a
    small p-value. For two runs: which slice of the metric moved, and a run that would confirm the cause.
    """
    paths = _rows_path(before), _rows_path(after)
    import numpy as np

    from assay.triage.data.compare import compare_data

    found = compare_data(*paths, np.random.default_rng(0))
    if not any(Path(text).exists() for text in (before, after)):
        found = found.model_copy(update={"moved": _moved(before, after)})
    print_result(found, as_json=as_json)


def _moved(before: str, after: str) -> "MovedMetric | None":
    """Return how the metric of two runs changed; None if a run is not evaluated, or by another metric."""
    from assay.triage.data.metric_shift import moved_metric

    home = current_home()
    runs = [home.run(home.meant_run(text)) for text in (before, after)]
    with ledger_with_runs(home, *(run.run_id for run in runs)) as ledger:
        evaluations = [ledger.evaluations(run.run_id)[-1:] for run in runs]
        held_s = sum(second.held_s for second in ledger.training_seconds(runs[1].run_id))
    if not all(evaluations):
        return None
    (old,), (new,) = evaluations
    return moved_metric(old, new, dataset=str(runs[0].recipe["data"]["dataset"]), held_s=held_s)


def _rows_path(source: str) -> Path:
    """Return the file or folder; for a run, the folder of its dataset."""
    if Path(source).exists():
        return Path(source)
    if "/" in source or Path(source).suffix:
        raise ConfigError(f"{source}: no such file or folder.")
    home = current_home()
    run_id = home.meant_run(source)
    if not home.has_run(run_id):
        raise ConfigError(f"{source}: no such file or folder, and no run in {home.folder}.")
    run = home.run(run_id)
    run.check_trained_here()
    return Path(str(run.recipe["data"]["dataset"]))
