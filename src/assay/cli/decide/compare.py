"""`assay decide compare`: compare candidate runs with a baseline run."""

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
    help="Largest loss of the metric, in its unit, that the interval of a passing candidate may include. [AUC: 0.01; "
    "other metrics: 0]",
)
@click.option(
    "--out", type=OUT_PAGE, help="HTML page to write; by default comparison.html in the folder of the first candidate."
)
@force_option
@click.option("--json", "as_json", is_flag=True, help="Print the comparisons as JSON (docs/json.md).")
def compare(
    baseline: str, candidates: tuple[str, ...], allowed_loss: float | None, out: Path | None, as_json: bool
) -> None:
    """Compare CANDIDATES with BASELINE on the same validation rows.

    Prints the difference of the metric (AUC for a classifier) with its interval, the throughput ratio and the
    cost, and writes a page with the curves. Exit code 1 if a candidate fails the rule.
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


def _print(comparison: "ComparisonView") -> None:
    from assay.reporting.views.verdict import device_hours_text, estimate_text, value_text, without_interval

    ratio = comparison.throughput_ratio
    click.secho(
        f"{comparison.verdict.upper()}  {comparison.candidate_run_id} beside {comparison.baseline_run_id}",
        fg=COLOURS[comparison.verdict],
        bold=True,
    )
    held, of_baseline = map(device_hours_text, (comparison.candidate_device_s, comparison.baseline_device_s))
    evaluated = (comparison.candidate_evaluation_s, comparison.baseline_evaluation_s)
    of_candidate, of_other = map(device_hours_text, evaluated)
    lines = [
        (
            comparison.metric.title,
            f"{comparison.candidate_value:.4f}, the baseline's {comparison.baseline_value:.4f}, "
            f"on {comparison.num_rows:,} rows",
        ),
        (
            "difference",
            estimate_text(comparison.difference, signed=True) + without_interval(comparison.difference),
        ),
        ("rule", f"passes if {_rule(comparison)} (--allowed-loss {comparison.allowed_loss:g})"),
        ("weights", "equal, bit for bit" if comparison.weights_equal else "differ"),
        ("throughput", f"{ratio:.2f} x the baseline's rows per second" if ratio else "not measured"),
        ("training", f"{held} of device time, the baseline's {of_baseline}"),
        *([("evaluation", f"{of_candidate}, the baseline's {of_other}, apart")] if any(evaluated) else []),
    ]
    lines += [
        ("changed", f"{change.key}: {value_text(change.baseline)} -> {value_text(change.candidate)}")
        for change in comparison.changes
    ]
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        click.echo(f"  {name:<{width}}  {value}")
    for warning in comparison.warnings:
        click.secho(f"  {'warning':<{width}}  {warning.text}", fg="yellow")


def _rule(comparison: "ComparisonView") -> str:
    if not comparison.allowed_loss:
        return "the whole interval is a gain"
    return f"the whole interval loses less than {comparison.allowed_loss:g}"
