"""`assay triage data`: which data changed."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.errors import ConfigError
from assay.cli.given import asked_ledger, given_home
from assay.cli.triage.given import JSON

if TYPE_CHECKING:
    from assay.records.data_changes import MovedMetric


@click.command()
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@JSON
def data(before: str, after: str, as_json: bool) -> None:
    """Name what changed from the data BEFORE to the data AFTER, and by how much.

    Either is a dataset, a run (its dataset), or Parquet, Arrow, CSV or JSON lines. Beside what columns show
    (missing, unseen, shares, units, distributions): copies, lengths and cuts, the template around texts, token
    ids, the mask of the loss, labels that no longer fit. Each needs a size, not only a p-value. Of two runs:
    which slice of the metric moved, and the run that would prove why."""
    paths = _rows_path(before), _rows_path(after)
    import numpy as np

    from assay.reporting.terminal.triage import print_data_changes
    from assay.triage.data.compare import compare_data

    found = compare_data(*paths, np.random.default_rng(0))
    if not any(Path(each).exists() for each in (before, after)):
        found = found.model_copy(update={"moved": _moved(before, after)})
    if as_json:
        click.echo(found.to_json())
    else:
        print_data_changes(found)


def _moved(before: str, after: str) -> "MovedMetric | None":
    """What the metric of two runs did; None where one is not evaluated, or by another metric."""
    from assay.triage.data.moved import moved_metric

    home = given_home()
    runs = [home.run(home.meant_run(each)) for each in (before, after)]
    with asked_ledger(home, *(run.run_id for run in runs)) as ledger:
        evaluations = [ledger.evaluations(run.run_id)[-1:] for run in runs]
        held_s = sum(second.held_s for second in ledger.training_seconds(runs[1].run_id))
    if not all(evaluations):
        return None
    (old,), (new,) = evaluations
    return moved_metric(old, new, dataset=str(runs[0].recipe["data"]["dataset"]), held_s=held_s)


def _rows_path(given: str) -> Path:
    """The file or folder; of a run, the folder of its dataset."""
    if Path(given).exists():
        return Path(given)
    if "/" in given or Path(given).suffix:
        raise ConfigError(f"{given}: no such file or folder.")
    home = given_home()
    run_id = home.meant_run(given)
    if not home.has_run(run_id):
        raise ConfigError(f"{given}: no such file or folder, and no run in {home.folder}.")
    return Path(str(home.run(run_id).recipe["data"]["dataset"]))
