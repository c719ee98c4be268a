"""`assay triage symptoms`, `hang`: what logs and dumps say of one failure."""

from pathlib import Path

import click

from assay.cli.given import SOURCE_PATH
from assay.cli.triage.given import JSON


@click.command()
@click.argument("logs", nargs=-1, type=SOURCE_PATH, metavar="LOG...", required=True)
@JSON
def symptoms(logs: tuple[Path, ...], as_json: bool) -> None:
    """Name the line at which each LOG failed, of which class that is, and which failures are alike.

    A LOG is any text: of a rank, a job, a scheduler, a CI run. A folder holds the logs of one attempt's ranks:
    what only lost its peer there, or was put away, is told from what began it."""
    from assay.cli.screens.triage import print_symptoms
    from assay.triage.symptoms.together import read_symptoms

    found = read_symptoms(logs)
    if as_json:
        click.echo(found.to_json())
    else:
        print_symptoms(found)


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@JSON
def hang(folder: Path, as_json: bool) -> None:
    """Name the ranks that never entered a collective that all others wait in, or entered another.

    FOLDER holds one dump of torch's flight recorder for each rank, JSON or pickle. Nothing of a dump is
    executed."""
    from assay.cli.screens.triage import print_hung_ranks
    from assay.triage.flight_recorder import read_dumps
    from assay.triage.hung_collective import find_hung_ranks

    found = find_hung_ranks(*read_dumps(folder))
    if as_json:
        click.echo(found.to_json())
    else:
        print_hung_ranks(found)
