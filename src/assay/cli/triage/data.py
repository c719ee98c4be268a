"""`assay triage data`: which data changed."""

from pathlib import Path

import click

from assay.base.errors import ConfigError
from assay.cli.given import given_home
from assay.cli.triage.given import JSON


@click.command()
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@JSON
def data(before: str, after: str, as_json: bool) -> None:
    """Name what changed from the data BEFORE to the data AFTER, and by how much.

    Either is a dataset, a run (its dataset), or Parquet, Arrow, CSV or JSON lines. Beside what columns show
    (missing, unseen, shares, units, distributions): copies, lengths and cuts, the template around texts, token
    ids, the mask of the loss, labels that no longer fit. Each needs a size, not only a p-value."""
    paths = _rows_path(before), _rows_path(after)
    import numpy as np

    from assay.cli.screens.triage import print_data_changes
    from assay.triage.data.compare import compare_data

    found = compare_data(*paths, np.random.default_rng(0))
    if as_json:
        click.echo(found.to_json())
    else:
        print_data_changes(found)


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
