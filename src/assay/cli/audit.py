"""`assay audit`: prove that each row was learned exactly once."""

import sys
from typing import TYPE_CHECKING

import click

from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.cli.given import RUN, given_home

if TYPE_CHECKING:
    from assay.records.audit import AuditReport, WeightsDepth


@click.command()
@click.argument("run_id", metavar="RUN", type=RUN)
@click.option("--quick", is_flag=True, help="Read neither shards nor weights again; check the receipts only.")
@click.option("--deep", is_flag=True, help="Read the weights of every commit, not only of the last one.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def audit(run_id: str, quick: bool, deep: bool, as_json: bool) -> None:
    """Prove from its receipts that RUN learned each row exactly once, or name the rows that it did not.

    The last commit's weights are read, too, and must be what was committed. What was not checked is said.
    Exit code 0 if that is proved, 1 if it fails or an audit that looked at more has failed, also where the
    log of commits is missing. A run that is not finished yet is 'incomplete' where nothing is wrong so far, and
    so is one whose dataset is not here: exit
    code 3. Needs no ledger, and nothing that it can write to.
    """
    from assay.workflows.audit import audited_run

    if quick and deep:
        raise ConfigError("give --quick or --deep.")
    report, known, unkept = audited_run(
        given_home(), run_id, check_shards=not quick, weights=_weights(quick, deep)
    )
    verdict = "fail" if known is not None and known.verdict == "fail" else report.verdict
    if as_json:
        click.echo(report.to_json())
    else:
        colour = {"pass": "green", "fail": "red", "incomplete": "yellow"}[verdict]
        stands = "" if verdict == report.verdict else f" of what was looked at; {verdict.upper()} on record"
        click.secho(f"{report.verdict.upper()}{stands}  {report.run_id}", fg=colour, bold=True)
        click.echo(f"  {_rows_text(report)}")
        if report.rows_quarantined:
            click.echo(f"  {number_of(report.rows_quarantined, 'row')} quarantined: their bytes are damaged")
        if report.prompts is not None:
            click.echo(f"  prompts: {report.prompts}")
        for kind, lines in (
            ("problem", report.problems),
            ("missing", report.missing),
            ("repeated", report.repeated),
            ("stray", report.strays),
            ("not checked", report.not_checked),
        ):
            for line in lines:
                click.echo(f"  {kind}: {line}")
    if known is not None:
        said = (
            f"not on record: an audit that looked at more stays there, {known.verdict} up to step {known.step}"
        )
        click.secho(f"{said}; '{known.command()}' makes it again.", err=True, fg="yellow")
    if unkept:
        click.echo(f"the report is not on record: {unkept}", err=True)
    sys.exit({"pass": 0, "fail": 1, "incomplete": 3}[verdict])


def _rows_text(report: "AuditReport") -> str:
    if not report.rows_expected and report.rows_learned:
        return f"{report.rows_learned:,} rows learned by the receipts; how many were due is not known"
    epochs = number_of(report.epochs, "epoch")
    return f"{report.rows_learned:,} of {report.rows_expected:,} rows learned, in {epochs}"


def _weights(quick: bool, deep: bool) -> "WeightsDepth":
    return "none" if quick else "all" if deep else "last"
