"""`assay triage symptoms`, `hang`: what logs, runs and dumps show about failures."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.errors import DataError
from assay.cli.parameters import (
    SOURCE_OR_RUN,
    current_home,
    json_option,
    ledger_with_runs,
    print_status,
    run_and_step,
    timeout_option,
)
from assay.cli.triage.parameters import print_result

if TYPE_CHECKING:
    from assay.records.symptoms import SharedCause, Symptoms


@click.command()
@click.argument("sources", nargs=-1, type=SOURCE_OR_RUN, metavar="[RUN|LOG]...")
@click.option(
    "--replay", is_flag=True, help="Replay the failed step of each run, to name a wrong operator that several share."
)
@timeout_option(3_600.0, "each replay")
@json_option
def symptoms(sources: tuple[Path | str, ...], replay: bool, timeout_s: float, as_json: bool) -> None:
    """Find the line at which each LOG failed and its class, group similar failures, and list which may share a
    cause.

    A LOG is any text: of a rank, a job, a scheduler or a CI run. A folder holds the logs of one attempt's
    ranks, and consequences such as lost peers are separated from the cause. A RUN stands for what is on record
    about it; RUN@STEP for an anomalous step. Without arguments, the failures of all runs are read.
    """
    found = _symptoms_of(sources)
    if replay:
        found = found.model_copy(update={"shared": (*_replayed_causes(found, timeout_s), *found.shared)})
    print_result(found, as_json=as_json)


def _symptoms_of(sources: tuple[Path | str, ...]) -> "Symptoms":
    """Return the symptoms of logs (paths) and runs (ids, `RUN@STEP`); without any, of all runs on record."""
    from assay.triage.symptoms.logs import read_symptoms
    from assay.triage.symptoms.recorded import failures_of_runs, failures_on_record

    logs = [source for source in sources if isinstance(source, Path)]
    runs = [source for source in sources if isinstance(source, str)]
    if sources and not runs:
        return read_symptoms(logs)
    import numpy as np

    from assay.triage.symptoms.shared import shared_causes

    home = current_home()
    requested = [run_and_step(home, text) for text in runs]
    with ledger_with_runs(home, *(run_id for run_id, _ in requested)) as ledger:
        failures = failures_of_runs(ledger, requested) if requested else failures_on_record(ledger)
        causes, because = shared_causes(ledger, failures, np.random.default_rng(0))
    found = read_symptoms(logs, failures)
    return found.model_copy(update={"shared": causes, "shared_because": because})


def _replayed_causes(found: "Symptoms", timeout_s: float) -> "tuple[SharedCause, ...]":
    """Replay the failed step of each run. A step that cannot be replayed is named on stderr."""
    from assay.triage.symptoms.shared import causes_of_replays, steps_to_replay
    from assay.workflows.processes.replay import audited_replay

    steps, reports, environment = steps_to_replay(found.failures), {}, current_home().environment()
    for run_id, symptom in steps.items():
        print_status(f"replay of step {symptom.step} of run '{run_id}'")
        try:
            reports[run_id] = audited_replay(run_id, symptom.step or 0, environment=environment, timeout_s=timeout_s)
        except DataError as error:
            click.secho(f"warning: {error}", err=True, fg="yellow")
    return causes_of_replays(steps, reports)


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@json_option
def hang(folder: Path, as_json: bool) -> None:
    """List the ranks for which the others wait in a collective, a send or a receive.

    FOLDER holds one dump of torch's flight recorder per rank, JSON or pickle. No code in a dump is executed.
    """
    from assay.triage.flight_recorder import find_hung_ranks, read_dumps

    found = find_hung_ranks(*read_dumps(folder))
    print_result(found, as_json=as_json)
