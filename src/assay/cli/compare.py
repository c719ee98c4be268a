"""`assay compare`: candidates beside their baseline."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.cli.parameters import OUT_PAGE, RUN, current_home, force_option, writable_ledger

if TYPE_CHECKING:
    from assay.reporting.views.comparison import ComparisonView

COLOURS = {"pass": "green", "fail": "red", "undecided": "yellow"}


@click.command()
@click.argument("baseline", type=RUN)
@click.argument("candidates", nargs=-1, required=True, type=RUN)
@click.option(
    "--allowed-loss",
    "--allowed-auc-loss",
    type=click.FloatRange(min=0.0),
    help="A candidate passes if its whole interval loses less than this, in the metric's unit. [an AUC: 0.01; "
    "any other metric: 0]",
)
@click.option("--out", type=OUT_PAGE, help="Page to write; by default comparison.html in the first candidate's folder.")
@force_option
@click.option("--json", "as_json", is_flag=True, help="Print the comparisons as JSON (docs/json.md).")
def compare(
    baseline: str, candidates: tuple[str, ...], allowed_loss: float | None, out: Path | None, as_json: bool
) -> None:
    """Put runs beside the BASELINE on the same validation rows.

    Says by how much each one's metric differs (a classifier's AUC), with its interval against the rule, how
    much faster it was and what it cost, and writes a page with the curves. Exit code 1 if a candidate fails the
    rule.
    """
    from assay.reporting.documents.render import render_comparison_page, write_page
    from assay.reporting.views.comparison import comparison_page
    from assay.reporting.views.view import json_list
    from assay.store.ledger.writer import marking

    home = current_home()
    with writable_ledger(home) as ledger, marking(home, *candidates):
        page = comparison_page(ledger, baseline, candidates, allowed_loss=allowed_loss, out=out)
    comparisons = [candidate.compared for candidate in page.candidates]
    written = write_page(render_comparison_page(page), out, default=Path(comparisons[0].page))
    if as_json:
        click.echo(json_list(comparisons))
    else:
        for comparison in comparisons:
            _print(comparison)
        click.echo(written)
    sys.exit(1 if any(comparison.verdict == "fail" for comparison in comparisons) else 0)


def _print(comparisons: "ComparisonView") -> None:
    from assay.reporting.views.verdict import (
        device_hours_text,
        estimate_text,
        value_text,
        without_interval,
    )

    ratio = comparisons.throughput_ratio
    click.secho(
        f"{comparisons.verdict.upper()}  {comparisons.candidate_run_id} beside {comparisons.baseline_run_id}",
        fg=COLOURS[comparisons.verdict],
        bold=True,
    )
    held, of_baseline = map(device_hours_text, (comparisons.candidate_device_s, comparisons.baseline_device_s))
    evaluated = (comparisons.candidate_evaluation_s, comparisons.baseline_evaluation_s)
    of_candidate, of_other = map(device_hours_text, evaluated)
    lines = [
        (
            comparisons.metric.title,
            f"{comparisons.candidate_value:.4f}, the baseline's {comparisons.baseline_value:.4f}, on {comparisons.num_rows:,} "
            "rows",
        ),
        (
            "difference",
            estimate_text(comparisons.difference, signed=True) + without_interval(comparisons.difference),
        ),
        ("rule", f"passes if {_rule(comparisons)} (--allowed-loss {comparisons.allowed_loss:g})"),
        ("weights", "equal, bit for bit" if comparisons.weights_equal else "differ"),
        ("throughput", f"{ratio:.2f} x the baseline's rows per second" if ratio else "not measured"),
        ("training", f"{held} of device time, the baseline's {of_baseline}"),
        *([("evaluation", f"{of_candidate}, the baseline's {of_other}, apart")] if any(evaluated) else []),
    ]
    lines += [
        ("changed", f"{change.key}: {value_text(change.baseline)} -> {value_text(change.candidate)}")
        for change in comparisons.changes
    ]
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        click.echo(f"  {name:<{width}}  {value}")
    for warning in comparisons.warnings:
        click.secho(f"  {'warning':<{width}}  {warning.text}", fg="yellow")


def _rule(comparisons: "ComparisonView") -> str:
    if not comparisons.allowed_loss:
        return "even the worse end of its interval is a gain"
    return f"even the worse end of its interval loses less than {comparisons.allowed_loss:g}"
