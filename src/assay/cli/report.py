"""`assay report`: one page about a run."""

from pathlib import Path

import click

from assay.cli.given import OUT_FILE, RUN, given_home, opened_ledger


@click.command()
@click.argument("run_id", metavar="RUN", type=RUN)
@click.option("--out", type=OUT_FILE, help="File to write; by default report.html in the run's folder.")
def report(run_id: str, out: Path | None) -> None:
    """Write one self-contained HTML page about RUN: what happened, did it learn, what is it worth."""
    from assay.reporting.pages.render import render_run_page, write_file
    from assay.reporting.views.run_page import run_page

    with opened_ledger(given_home()) as ledger:
        page = run_page(ledger, run_id)
    out = out or Path(page.view.run_dir) / "report.html"
    write_file(out, render_run_page(page))
    click.echo(out)
