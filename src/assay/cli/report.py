"""`assay report`: write an HTML page about a run."""

from pathlib import Path

import click

from assay.base.clock import SystemClock
from assay.cli.parameters import OUT_PAGE, RUN, current_home, force_option, ledger_with_runs


@click.command()
@click.argument("run_id", metavar="RUN", type=RUN)
@click.option("--out", type=OUT_PAGE, help="File to write; by default report.html in the folder of the run.")
@force_option
def report(run_id: str, out: Path | None) -> None:
    """Write one self-contained HTML page about RUN."""
    from assay.reporting.documents.render import render_document, write_page
    from assay.reporting.documents.runs.run import run_document
    from assay.reporting.views.runs.run_page import run_page

    home = current_home()
    with ledger_with_runs(home, run_id) as ledger:
        page = run_page(ledger, run_id, home.settings())
    document = run_document(page, now_s=SystemClock().now_s())
    click.echo(write_page(render_document(document), out, default=Path(page.view.run_dir) / "report.html"))
