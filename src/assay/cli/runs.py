"""`assay runs`: one line per run."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.table import Table

    from assay.store.ledger.summary import RunSummary


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, the newest run first.")
@click.option("--rebuild", is_flag=True, help="First write every run's folder into the ledger again.")
def runs(as_json: bool, rebuild: bool) -> None:
    """List the runs, the newest first.

    The ledger is an index over the runs' folders: if its database is lost, --rebuild makes it anew.

    Keys with --json: run_id, name, status, step, total_steps, world_sizes, attempts, auc, device_hours,
    created.
    """
    import json

    from assay.cli.screens.terminal import stdout
    from assay.store.home import Home
    from assay.store.ledger.summary import run_summaries

    home = Home.from_environment()
    if rebuild:
        from assay.launch.rebuild import rebuild_all

        with home.open_ledger() as opened:
            rebuild_all(home, opened)
    ledger = home.find_ledger()
    summaries = run_summaries(ledger) if ledger else []
    if ledger:
        ledger.close()
    if as_json:
        click.echo(json.dumps([summary_tree(summary) for summary in summaries]))
    elif not summaries:
        click.echo(f"No runs in {home.folder} yet. 'assay train RECIPE' makes one, 'assay demo' shows all.")
    else:
        stdout().print(_table(summaries))


def summary_tree(summary: "RunSummary") -> dict[str, object]:
    """A run as `assay runs --json` prints it."""
    from assay.base.clock import utc_text

    return {
        "run_id": summary.run.run_id,
        "name": summary.run.recipe.get("name"),
        "status": summary.status,
        "step": summary.step,
        "total_steps": summary.total_steps,
        "world_sizes": [attempt.world_size for attempt in summary.attempts],
        "attempts": len(summary.attempts),
        "auc": summary.auc,
        "device_hours": summary.device_s / 3600,
        "created": utc_text(summary.run.created_s),
    }


def _table(summaries: "list[RunSummary]") -> "Table":
    from rich.table import Table
    from rich.text import Text

    from assay.base.clock import utc_text
    from assay.cli.screens.terminal import STATUS_STYLES, device_hours_text, world_sizes_text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run", no_wrap=True)
    for title, justify in (("status", "left"), ("step", "right"), ("ranks", "left"), ("attempts", "right")):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    for title in ("AUC", "device time", "begun (UTC)"):
        table.add_column(title, justify="right", no_wrap=True)
    for summary in summaries:
        total = "" if summary.total_steps is None else f"/{summary.total_steps:,}"
        table.add_row(
            summary.run.run_id,
            Text(summary.status, style=STATUS_STYLES[summary.status]),
            f"{summary.step:,}{total}",
            world_sizes_text([attempt.world_size for attempt in summary.attempts]),
            str(len(summary.attempts)),
            "" if summary.auc is None else f"{summary.auc:.4f}",
            device_hours_text(summary.device_s),
            utc_text(summary.run.created_s)[:16].replace("T", " "),
        )
    return table
