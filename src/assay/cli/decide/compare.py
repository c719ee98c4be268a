"""`assay decide compare`: compare candidate runs with a baseline run."""

import sys
from pathlib import Path

import click

from assay.cli.parameters import OUT_PAGE, RUN, current_home, force_option, json_option, writable_ledger


@click.command()
@click.argument("baseline", type=RUN)
@click.argument("candidates", nargs=-1, required=True, type=RUN)
@click.option(
    "--allowed-loss",
    type=click.FloatRange(min=0.0),
    help="Largest loss of the metric, in its unit, that the interval of a passing candidate may include. [AUC: 0.01; "
    "other metrics: 0]",
)
@click.option(
    "--out", type=OUT_PAGE, help="HTML page to write; by default comparison.html in the folder of the first candidate."
)
@force_option
@json_option
def compare(
    baseline: str, candidates: tuple[str, ...], allowed_loss: float | None, out: Path | None, as_json: bool
) -> None:
    """Compare CANDIDATES with BASELINE on the same validation rows.

    Prints the difference of the metric (AUC for a classifier) with its interval, the throughput ratio and the
    cost, and writes a page with the curves. Exit code 1 if a candidate fails the rule.
    """
    from assay.reporting.documents.comparison import comparison_document
    from assay.reporting.documents.render import render_document, write_page
    from assay.reporting.views.comparison import comparison_page
    from assay.reporting.views.view import json_list
    from assay.store.ledger.writer import marking

    home = current_home()
    with writable_ledger(home) as ledger, marking(home, *candidates):
        page = comparison_page(ledger, baseline, candidates, allowed_loss=allowed_loss, out=out)
    comparisons = [candidate.compared for candidate in page.candidates]
    document = comparison_document(page)
    written = write_page(render_document(document), out, default=Path(comparisons[0].page))
    if as_json:
        click.echo(json_list(comparisons))
    else:
        from assay.reporting.terminal.document import print_document

        print_document(document)
        click.echo(written)
    sys.exit(1 if any(comparison.verdict == "fail" for comparison in comparisons) else 0)
