"""`assay audit`: prove that each row was learned exactly once."""

import sys

import click

from assay.cli.given import given_home


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--quick", is_flag=True, help="Do not read the shards again; check the receipts only.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def audit(run_id: str, quick: bool, as_json: bool) -> None:
    """Prove from its receipts that RUN learned each row exactly once, or name the rows that it did not.

    Exit code 1 if it fails, also where the log of commits is missing. A run that is not finished yet is
    'incomplete' where nothing is wrong so far.
    """
    from assay.launch.run import existing_run
    from assay.store.commit_log import CommitLog
    from assay.store.findings import keep_audit
    from assay.store.objects import open_store
    from assay.training.audit import audit_run

    home = given_home()
    with home.open_ledger() as ledger:
        run = existing_run(home, ledger.run(run_id).run_id)
        report = audit_run(run, CommitLog(open_store(run.store_url)), check_shards=not quick)
        keep_audit(ledger, run.run_dir, report)
    if as_json:
        click.echo(report.to_json())
    else:
        colour = {"pass": "green", "fail": "red", "incomplete": "yellow"}[report.verdict]
        click.secho(f"{report.verdict.upper()}  {run.run_id}", fg=colour, bold=True)
        click.echo(
            f"  {report.rows_learned:,} of {report.rows_expected:,} rows learned, in {report.epochs} epochs"
        )
        if report.rows_quarantined:
            click.echo(f"  {report.rows_quarantined:,} rows quarantined: their bytes are damaged")
        for kind, lines in (
            ("problem", report.problems),
            ("missing", report.missing),
            ("repeated", report.repeated),
        ):
            for line in lines:
                click.echo(f"  {kind}: {line}")
    sys.exit(1 if report.verdict == "fail" else 0)
