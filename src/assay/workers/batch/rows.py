"""The rows of an eval run, inline or of a file: each is checked against the eval's schema, faults have lines.

Nothing is graded before every row is known to be one.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from assay.base.errors import DataError
from assay.base.value_text import kind_text
from assay.scoring.grade import sample_values
from assay.serving.evals.data_source import EvalSource, FileContent, FileId
from assay.serving.evals.item_schema import ItemSchema
from assay.serving.files import FileShelf
from assay.workers.fine_tuning.training_file import MAX_FAULTS, Fault, ReadFile, json_object, without_bom


class EvalRow(NamedTuple):
    """One row."""

    line: int
    """In its file, or its request, from 1."""
    item: dict[str, Any]
    sample: dict[str, Any] | None
    """As templates read it; None where none is given."""


class RowRules:
    """What a row has to be."""

    def __init__(self, schema: dict[str, Any], *, wants_sample: bool) -> None:
        """`wants_sample`: each row has to bring one."""
        self._schema = ItemSchema(schema)
        self._wants_sample = wants_sample

    def row(self, line: int, tree: dict[str, Any]) -> EvalRow:
        """The row; `DataError` says what is wrong."""
        if unknown := sorted(set(tree) - {"item", "sample"}):
            raise DataError(
                f"unknown key {unknown[0]!r:.60}; a row has 'item', and 'sample' where one is given"
            )
        item, sample = tree.get("item"), tree.get("sample")
        if not isinstance(item, dict):
            raise DataError(f"'item' must be an object, found {kind_text(item)}")
        try:
            json.dumps(item, allow_nan=False)
        except ValueError as error:
            raise DataError(f"'item' holds a number that is none ({error})") from error
        self._schema.check(item)
        if sample is None and self._wants_sample:
            raise DataError("it has no 'sample', and the criteria read one")
        given = None if sample is None else _as_graded(sample, item)
        return EvalRow(line, item, given)


def lines_of(source: EvalSource, files: FileShelf) -> Iterator[tuple[int, bytes | dict[str, Any]]]:
    """Every row as it lies there, with its line; empty lines are none."""
    match source.source:
        case FileContent():
            for number, row in enumerate(source.source.content, start=1):
                tree = row.model_dump(mode="json")
                yield number, {name: each for name, each in tree.items() if each is not None}
        case FileId():
            for number, line in enumerate(files.lines(source.source.id), start=1):
                if (text := without_bom(line)).strip():
                    yield number, text


def rows_of(lines: Iterable[tuple[int, bytes | dict[str, Any]]], rules: RowRules) -> Iterator[EvalRow | Fault]:
    """Each as a row, or what is wrong with it."""
    for number, line in lines:
        try:
            yield rules.row(number, json_object(line) if isinstance(line, bytes) else line)
        except DataError as error:
            yield Fault(number, str(error).removesuffix("."))


def read_rows(rows: Iterable[EvalRow | Fault]) -> ReadFile:
    """How many rows there are, or what is wrong with the first hundred that are none."""
    faults: list[Fault] = []
    num_rows = 0
    for row in rows:
        if isinstance(row, EvalRow):
            num_rows += 1
            continue
        faults.append(row)
        if len(faults) == MAX_FAULTS:
            break
    return ReadFile(num_rows, tuple(faults))


def _as_graded(sample: Any, item: dict[str, Any]) -> dict[str, Any]:
    """A sample that is given, as graders read one: by its text, which the API has in two places."""
    text = sample.get("output_text") if isinstance(sample, dict) else None
    if text is None and isinstance(sample, dict):
        choices = sample.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        message = first.get("message") if isinstance(first, dict) else None
        text = message.get("content") if isinstance(message, dict) else None
    if not isinstance(text, str):
        raise DataError("'sample' has neither 'output_text' nor 'choices[0].message.content'")
    found: dict[str, Any] = sample_values(text, item)["sample"]
    return found
