"""What several commands of `assay triage` are given: sources, columns, JSON."""

import click

from assay.cli.given import SOURCE_PATH

SOURCES = click.argument("sources", nargs=-1, type=SOURCE_PATH, metavar="[SOURCE]...")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object (docs/json.md).")


def column_options(command: click.decorators.FC) -> click.decorators.FC:
    """The options that say what a table's columns are."""
    for option in reversed(
        (
            click.option(
                "--failed", metavar="COL", help="1 where the attempt failed, else 0; a count with --attempts."
            ),
            click.option("--attempts", metavar="COL", help="How many attempts a row stands for."),
            click.option("--at", metavar="COL", help="When: epoch seconds, or ISO 8601."),
            click.option("--unit", metavar="COL", help="What fails alike: the recipe without its seed."),
        )
    ):
        command = option(command)
    return command


def names_in(text: str | None) -> tuple[str, ...] | None:
    """The names of a list with commas; None where none is given."""
    return tuple(part.strip() for part in text.split(",")) if text else None
