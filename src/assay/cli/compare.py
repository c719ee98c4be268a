"""`assay compare`: candidates beside their baseline."""

import json
import sys
from pathlib import Path

import click


@click.command()
@click.argument("baseline")
@click.argument("candidates", nargs=-1, required=True)
@click.option(
    "--allowed-auc-loss",
    default=0.01,
    show_default=True,
    help="A candidate passes if the interval of its AUC difference lies above minus this.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Page to write; by default comparison.html in the first candidate's folder.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the comparisons as JSON.")
def compare(
    baseline: str, candidates: tuple[str, ...], allowed_auc_loss: float, out: Path | None, as_json: bool
) -> None:
    """Put runs beside the BASELINE on the same validation rows: AUC difference with its interval against the
    rule, throughput, device-hours, curves. Exit code 1 if a candidate fails the rule."""
    from assay.reporting.gather import comparison_page
    from assay.reporting.render import render_comparison_page
    from assay.store.ledger.ledger import open_ledger

    with open_ledger() as ledger:
        page = comparison_page(ledger, baseline, candidates, allowed_loss=allowed_auc_loss)
    out = out or Path(page.candidates[0].page.run.run_dir) / "comparison.html"
    out.write_text(render_comparison_page(page), encoding="utf-8")
    if as_json:
        tree = [
            {
                **each.comparison.to_tree(),
                "throughput_ratio": (each.page.rows_per_second or 0) / (page.baseline.rows_per_second or 1),
                "page": str(out),
            }
            for each in page.candidates
        ]
        click.echo(json.dumps(tree))
    else:
        for each in page.candidates:
            found = each.comparison
            low, high = found.difference.low or 0.0, found.difference.high or 0.0
            click.echo(f"{found.candidate_run_id} against {found.baseline_run_id}: {found.verdict}")
            click.echo(
                f"  AUC {found.candidate_auc:.4f} against {found.baseline_auc:.4f}: difference "
                f"{found.difference.value:+.4f} [{low:+.4f}, {high:+.4f}], allowed loss {found.allowed_loss}"
            )
            click.echo(f"  weights {'equal, bit for bit' if found.weights_equal else 'differ'}")
            speed = (each.page.rows_per_second or 0) / (page.baseline.rows_per_second or 1)
            click.echo(f"  {speed:.2f} x the baseline's rows a second")
        click.echo(out)
    sys.exit(1 if any(each.comparison.verdict == "fail" for each in page.candidates) else 0)
