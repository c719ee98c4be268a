"""`assay report`: write an HTML page about a run or all campaigns."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.clock import SystemClock
from assay.cli.parameters import OUT_PAGE, RUN, current_home, force_option, ledger_with_runs, writable_ledger

if TYPE_CHECKING:
    from assay.store.home import Home


@click.command()
@click.argument("run_id", metavar="[RUN]", type=RUN, required=False)
@click.option("--campaigns", is_flag=True, help="Write a page about all campaigns and their decisions instead.")
@click.option("--out", type=OUT_PAGE, help="File to write; by default in the folder of the run or the campaigns.")
@force_option
def report(run_id: str | None, campaigns: bool, out: Path | None) -> None:
    """Write one self-contained HTML page about RUN or all campaigns."""
    if (run_id is not None) == campaigns:
        raise click.UsageError("give a RUN, or --campaigns.")
    home = current_home()
    if run_id is not None:
        _report_run(home, run_id, out)
    else:
        _report_campaigns(home, out)


def _report_run(home: "Home", run_id: str, out: Path | None) -> None:
    from assay.reporting.documents.render import render_document, write_page
    from assay.reporting.documents.runs.run import run_document
    from assay.reporting.views.runs.run_page import run_page

    with ledger_with_runs(home, run_id) as ledger:
        page = run_page(ledger, run_id, home.settings())
    document = run_document(page, now_s=SystemClock().now_s())
    click.echo(write_page(render_document(document), out, default=Path(page.view.run_dir) / "report.html"))


def _report_campaigns(home: "Home", out: Path | None) -> None:
    from assay.reporting.documents.overview import campaigns_document
    from assay.reporting.documents.render import render_document, write_page
    from assay.reporting.views.evidence import campaign_lines

    with writable_ledger(home) as ledger:
        lines = campaign_lines(ledger)
    if not lines:
        click.echo(f"No campaigns in {home.folder} yet. Start one with 'assay decide run FILE'.")
        return
    default_path = home.folder / "campaigns.html"
    folder = (out or default_path).parent.resolve()
    memos = [
        (os.path.relpath(memo.resolve(), folder), f"memo of {name}")
        for name in dict.fromkeys(line.campaign for line in lines)
        if (memo := home.campaigns / name / "memo.html").exists()
    ]
    page = render_document(campaigns_document(lines, memos=memos, now_s=SystemClock().now_s()))
    click.echo(write_page(page, out, default=default_path))
