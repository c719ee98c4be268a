"""`assay triage symptoms`, `hang`: what logs, runs on record and dumps say of failures."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.cli.given import SOURCE_OR_RUN, asked_ledger, given_home, run_and_step
from assay.cli.triage.given import JSON

if TYPE_CHECKING:
    from assay.records.symptoms import Symptoms


@click.command()
@click.argument("sources", nargs=-1, type=SOURCE_OR_RUN, metavar="[RUN|LOG]...")
@JSON
def symptoms(sources: tuple[Path | str, ...], as_json: bool) -> None:
    """Name the line at which each LOG failed, of which class that is, which failures are alike, and which of
    them one cause may have.

    A LOG is any text: of a rank, a job, a scheduler, a CI run. A folder holds the logs of one attempt's ranks:
    what only lost its peer there, or was put away, is told from what began it. A RUN says what is on record of
    it; RUN@STEP where it looked odd. Without either, the failures of all runs are read."""
    from assay.reporting.terminal.symptoms import print_symptoms

    found = symptoms_of(sources)
    if as_json:
        click.echo(found.to_json())
    else:
        print_symptoms(found)


def symptoms_of(sources: tuple[Path | str, ...]) -> "Symptoms":
    """What logs (paths) and runs (ids, `RUN@STEP`) say; without any, all runs on record."""
    from assay.triage.symptoms.recorded import AskedRun, failures_of_runs, failures_on_record
    from assay.triage.symptoms.together import read_symptoms

    logs = [source for source in sources if isinstance(source, Path)]
    runs = [source for source in sources if isinstance(source, str)]
    if sources and not runs:
        return read_symptoms(logs)
    import numpy as np

    from assay.triage.symptoms.shared import shared_causes

    home = given_home()
    asked = [AskedRun(*run_and_step(home, text)) for text in runs]
    with asked_ledger(home, *(each.run_id for each in asked)) as ledger:
        failures = failures_of_runs(ledger, asked) if asked else failures_on_record(ledger)
        shared = shared_causes(ledger, failures, np.random.default_rng(0))
    found = read_symptoms(logs, failures)
    return found.model_copy(update={"shared": shared.causes, "shared_because": shared.because})


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@JSON
def hang(folder: Path, as_json: bool) -> None:
    """Name the ranks that never entered a collective that all others wait in, or entered another.

    FOLDER holds one dump of torch's flight recorder for each rank, JSON or pickle. Nothing of a dump is
    executed."""
    from assay.reporting.terminal.triage import print_hung_ranks
    from assay.triage.flight_recorder import read_dumps
    from assay.triage.hung_collective import find_hung_ranks

    found = find_hung_ranks(*read_dumps(folder))
    if as_json:
        click.echo(found.to_json())
    else:
        print_hung_ranks(found)
