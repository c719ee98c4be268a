"""`assay report`: write an HTML page about a run, all campaigns, or the running runs."""

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
@click.option("--live", is_flag=True, help="Write a page about running runs and recent failures instead.")
@click.option(
    "--every",
    "interval_s",
    type=click.FloatRange(min=1.0),
    metavar="SECONDS",
    help="With --live: rewrite the page at this interval until Ctrl-C; the browser reloads it.",
)
@click.option("--out", type=OUT_PAGE, help="File to write; by default in the folder of the run or the campaigns.")
@force_option
def report(run_id: str | None, campaigns: bool, live: bool, interval_s: float | None, out: Path | None) -> None:
    """Write one self-contained HTML page about RUN, all campaigns, or the running runs."""
    if sum((run_id is not None, campaigns, live)) != 1:
        raise click.UsageError("give a RUN, or --campaigns, or --live.")
    if interval_s is not None and not live:
        raise click.UsageError("--every needs --live.")
    home = current_home()
    if run_id is not None:
        _report_run(home, run_id, out)
    elif campaigns:
        _report_campaigns(home, out)
    else:
        _report_live(home, out, interval_s)


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


def _report_live(home: "Home", out: Path | None, interval_s: float | None) -> None:
    from assay.reporting.documents.overview import live_document
    from assay.reporting.documents.render import render_document, write_page
    from assay.reporting.views.runs.run_page import live_runs

    clock = SystemClock()
    while True:
        with writable_ledger(home) as ledger:
            runs = live_runs(ledger, now_s=clock.now_s())
        document = live_document(runs, now_s=clock.now_s())
        page = render_document(document, refresh_s=interval_s)
        written = write_page(page, out, default=home.folder / "live.html")
        click.echo(f"{written}: {document.verdict.word if document.verdict else ''}")
        if interval_s is None:
            return
        clock.sleep_s(interval_s)
