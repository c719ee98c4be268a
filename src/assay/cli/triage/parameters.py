"""Arguments and options that several commands of `assay triage` share."""

from typing import TYPE_CHECKING

import click

from assay.cli.parameters import SOURCE_PATH, combined

if TYPE_CHECKING:
    from assay.records.record import Record

SOURCES = click.argument("sources", nargs=-1, type=SOURCE_PATH, metavar="[SOURCE]...")


column_options = combined(
    click.option("--failed", metavar="COL", help="Column with 1 for failed attempts, else 0; a count with --attempts."),
    click.option("--attempts", metavar="COL", help="Column with the number of attempts of a row."),
    click.option("--at", metavar="COL", help="Column with the time: epoch seconds, or ISO 8601."),
    click.option("--unit", metavar="COL", help="Column that groups dependent attempts: the recipe without its seed."),
)
"""The options that name the columns of a table."""


def names_in(text: str | None) -> tuple[str, ...] | None:
    """Split a comma-separated list; None if there is none."""
    return tuple(part.strip() for part in text.split(",")) if text else None


def print_result(found: "Record", *, as_json: bool) -> None:
    """Print a record as JSON, or its document."""
    if as_json:
        click.echo(found.to_json())
        return
    from assay.reporting.documents.triage import triage_document
    from assay.reporting.terminal.document import print_document

    print_document(triage_document(found))
