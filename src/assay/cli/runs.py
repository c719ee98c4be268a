"""`assay runs`: one line per run."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.table import Table

    from assay.reporting.views.run_list import RunLine


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, the newest run first (docs/json.md).")
@click.option("--rebuild", is_flag=True, help="First write every run's folder into the ledger again.")
def runs(as_json: bool, rebuild: bool) -> None:
    """List the runs, the newest first.

    The ledger is an index over the runs' folders: if its database is lost, --rebuild makes it anew.
    """
    from assay.cli.screens.terminal import stdout
    from assay.reporting.views.run_list import run_lines
    from assay.reporting.views.view import json_list
    from assay.store.home import Home

    home = Home.from_environment()
    if rebuild:
        from assay.launch.rebuild import rebuild_all

        with home.open_ledger() as opened:
            for remark in rebuild_all(home, opened).remarks:
                click.echo(remark, err=True)
    ledger = home.find_ledger()
    lines = run_lines(ledger) if ledger else []
    if ledger:
        ledger.close()
    if as_json:
        click.echo(json_list(lines))
    elif not lines:
        click.echo(f"No runs in {home.folder} yet. 'assay train RECIPE' makes one, 'assay demo' shows all.")
    else:
        stdout().print(_table(lines))


def _table(lines: "list[RunLine]") -> "Table":
    from rich.table import Table
    from rich.text import Text

    from assay.base.clock import utc_text
    from assay.cli.screens.terminal import STATUS_STYLES, device_hours_text, world_sizes_text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run", no_wrap=True)
    for title, justify in (("status", "left"), ("step", "right"), ("ranks", "left"), ("attempts", "right")):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    for title in ("measured", "device time", "begun (UTC)"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("where")
    for line in lines:
        total = "" if line.total_steps is None else f"/{line.total_steps:,}"
        table.add_row(
            line.run_id,
            Text(line.status, style=STATUS_STYLES[line.status]),
            f"{line.step:,}{total}",
            world_sizes_text(line.world_sizes),
            str(line.attempts),
            "" if line.value is None else f"{line.metric or ''} {line.value:.4f}".strip(),
            device_hours_text(3600 * line.device_hours),
            utc_text(line.created)[:16].replace("T", " "),
            (line.started or "") if line.status == "running" else "",
        )
    return table
