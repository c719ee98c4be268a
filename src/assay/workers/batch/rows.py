"""Rows of an eval run, inline or from a file, validated against the eval's schema before grading starts."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from assay.base.errors import DataError
from assay.base.value_text import kind_text
from assay.scoring.grader_runner import sample_values
from assay.serving.evals.data_source import EvalSource, FileContent, FileId
from assay.serving.evals.item_schema import ItemSchema
from assay.serving.files import FileRepository
from assay.workers.fine_tuning.training_file import MAX_FAULTS, Fault, json_object, without_bom


class EvalRow(NamedTuple):
    """One row."""

    line: int
    """Line in its file, or position in the request, from 1."""
    item: dict[str, Any]
    sample: dict[str, Any] | None
    """As graders read it; None without a sample."""


class RowRules:
    """Validates rows."""

    def __init__(self, schema: dict[str, Any], *, wants_sample: bool) -> None:
        """`wants_sample`: whether rows must have a sample."""
        self._schema = ItemSchema(schema)
        self._wants_sample = wants_sample

    def row(self, line: int, tree: dict[str, Any]) -> EvalRow:
        """Validate a row. Raises `DataError`."""
        if unknown := sorted(set(tree) - {"item", "sample"}):
            raise DataError(f"unknown key {unknown[0]!r:.60}; a row has 'item' and optionally 'sample'")
        item, sample = tree.get("item"), tree.get("sample")
        if not isinstance(item, dict):
            raise DataError(f"'item' must be an object, found {kind_text(item)}")
        try:
            json.dumps(item, allow_nan=False)
        except ValueError as error:
            raise DataError(f"'item' contains an invalid number ({error})") from error
        self._schema.check(item)
        if sample is None and self._wants_sample:
            raise DataError("it has no 'sample', but the criteria read one")
        sample_values_ = None if sample is None else _as_graded(sample, item)
        return EvalRow(line, item, sample_values_)


def lines_of(source: EvalSource, files: FileRepository) -> Iterator[tuple[int, bytes | dict[str, Any]]]:
    """Yield raw rows with their line numbers; empty lines are skipped."""
    match source.source:
        case FileContent():
            for number, row in enumerate(source.source.content, start=1):
                tree = row.model_dump(mode="json")
                yield number, {name: value for name, value in tree.items() if value is not None}
        case FileId():
            for number, line in enumerate(files.lines(source.source.id), start=1):
                if (text := without_bom(line)).strip():
                    yield number, text


def rows_of(lines: Iterable[tuple[int, bytes | dict[str, Any]]], rules: RowRules) -> Iterator[EvalRow | Fault]:
    """Yield each row, or what is wrong with it."""
    for number, line in lines:
        try:
            yield rules.row(number, json_object(line) if isinstance(line, bytes) else line)
        except DataError as error:
            yield Fault(number, str(error).removesuffix("."))


def read_rows(rows: Iterable[EvalRow | Fault]) -> tuple[int, list[Fault]]:
    """Return the number of rows, and the first hundred faults."""
    faults: list[Fault] = []
    num_rows = 0
    for row in rows:
        if isinstance(row, EvalRow):
            num_rows += 1
        else:
            faults.append(row)
        if len(faults) == MAX_FAULTS:
            break
    return num_rows, faults


def _as_graded(sample: Any, item: dict[str, Any]) -> dict[str, Any]:
    """Convert a sample to what graders read; its text may be in either of two fields of the API."""
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
