"""`assay runs audit`: check that training used each row, or executed each request of a session, exactly once."""

import sys
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import click

from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.cli.parameters import RUN_OR_SESSION, current_home, current_sessions, is_session, json_option, print_view

if TYPE_CHECKING:
    from assay.records.audit import AuditReport, WeightsDepth


_COLOURS = {"pass": "green", "fail": "red", "incomplete": "yellow"}
_EXIT_CODES = {"pass": 0, "fail": 1, "incomplete": 3}


@click.command()
@click.argument("run_id", metavar="RUN", type=RUN_OR_SESSION)
@click.option("--quick", is_flag=True, help="Check the receipts only; do not read shards or weights.")
@click.option("--deep", is_flag=True, help="Read the weights of every commit, not only those of the last one.")
@json_option
def audit(run_id: str, quick: bool, deep: bool, as_json: bool) -> None:
    """Check from the receipts of RUN that training used each row exactly once, or list the rows for which it
    did not.

    The weights of the last commit are read, too, and compared with their digests. The report names everything
    that was not checked. Exit code 0: proved. Exit code 1: the check fails, an earlier and more thorough audit
    failed, or the commit log is missing. Exit code 3 ('incomplete'): no problem so far, but the run is not
    finished or its dataset is not available. The command needs no ledger and works on read-only folders.

    Of a run that another tool trained and recorded (docs/record.md), the checkpoints are compared with their digests.
    Its rows are checked if its loader was assay.torch.RowLoader; else the check ends as 'incomplete'.

    RUN may be a session of the Tinker API: then each datum of each acknowledged request must be learned exactly once,
    stored requests, results and states must be unchanged, and tokens that the client says were sampled must have been
    ('incomplete': some requests have no result yet). --json lists what sampled the trained tokens.
    """
    if quick and deep:
        raise ConfigError("--quick and --deep exclude each other: give one of them.")
    if is_session(run_id):
        if quick or deep:
            raise ConfigError("--quick and --deep are for runs; a session is always read as a whole.")
        _audit_session(run_id, as_json)
    from assay.workflows.audit import audit_and_record

    report, earlier_report, save_problem = audit_and_record(
        current_home(), run_id, check_shards=not quick, weights=_weights(quick, deep)
    )
    verdict = "fail" if earlier_report is not None and earlier_report.verdict == "fail" else report.verdict
    print_view(report, partial(print_audit, verdict=verdict), as_json=as_json)
    if earlier_report is not None:
        message = (
            f"not recorded: the record keeps a more thorough audit, {earlier_report.verdict} up to step "
            f"{earlier_report.step}"
        )
        click.secho(f"{message}; '{earlier_report.command()}' repeats it.", err=True, fg="yellow")
    if save_problem:
        click.echo(f"the report was not recorded: {save_problem}", err=True)
    sys.exit(_EXIT_CODES[verdict])


def print_audit(report: "AuditReport", *, verdict: str = "") -> None:
    """Print an audit. `verdict`: the one on record, if it is another than the report's."""
    from assay.reporting.terminal.terminal import stdout

    verdict = verdict or report.verdict
    suffix = "" if verdict == report.verdict else f" of what was checked; {verdict.upper()} on record"
    screen = stdout()
    screen.print(f"{report.verdict.upper()}{suffix}  {report.run_id}", style=f"bold {_COLOURS[verdict]}")
    lines = [_rows_text(report)]
    if report.rows_quarantined:
        lines.append(f"{number_of(report.rows_quarantined, 'row')} quarantined: their bytes are corrupt")
    if report.prompts is not None:
        lines.append(f"prompts: {report.prompts}")
    for kind, found in (
        ("problem", report.problems),
        ("missing", report.missing),
        ("repeated", report.repeated),
        ("stray", report.strays),
        ("not checked", report.not_checked),
    ):
        lines += [f"{kind}: {line}" for line in found]
    for line in lines:
        screen.print(f"  {line}", soft_wrap=True)


def _audit_session(session_id: str, as_json: bool) -> NoReturn:
    from assay.workers.sessions.audit import audit_session

    found = audit_session(current_sessions(), session_id.partition(":")[0])
    if as_json:
        click.echo(found.to_json())
    else:
        click.secho(f"{found.verdict.upper()}  {session_id}", fg=_COLOURS[found.verdict], bold=True)
        click.echo(f"  {found.num_results:,} of {number_of(found.num_requests, 'request')} executed")
        datums = number_of(found.num_trained, "datum learned once", "datums learned once each")
        click.echo(f"  {datums}, {found.num_waiting:,} wait for an update, {found.num_dropped:,} were dropped")
        tokens = number_of(found.num_trained_tokens, "trained token")
        click.echo(f"  {found.num_sampled_tokens:,} of {tokens} traced to what was sampled")
        for line in found.problems:
            click.echo(f"  problem: {line}")
    sys.exit(_EXIT_CODES[found.verdict])


def _rows_text(report: "AuditReport") -> str:
    rows = f"{report.rows_trained:,} of {report.rows_expected:,} rows, in {number_of(report.epochs, 'epoch')}"
    if report.whole_checkpoints is not None:
        counted = f" ({report.rows_trained:,} counted)" if report.rows_trained else ""
        checkpoints = number_of(report.whole_checkpoints, "checkpoint")
        return f"{rows if report.epochs else f'rows: not observed{counted}'}; {checkpoints} whole"
    if not report.rows_expected and report.rows_trained:
        return f"{report.rows_trained:,} rows by the receipts; the expected number is unknown"
    return rows


def _weights(quick: bool, deep: bool) -> "WeightsDepth":
    return "none" if quick else "all" if deep else "last"
