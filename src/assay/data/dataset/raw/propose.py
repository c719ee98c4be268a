"""Proposes which fields are the text, label, metadata and time, by their names and values.

Fields with the default names (`text`, `label`) are used directly; everything else is a proposal that a person
confirms.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from assay.base.errors import ConfigError, DataError
from assay.data.dataset.formats.rows import FIELDS, missing_field
from assay.data.dataset.label_values import FEW, is_unlabelled
from assay.data.dataset.raw.find import iter_spans
from assay.records.dataset import Format

SAMPLE_ROWS = 1_000
TEXT, LABEL = "text", "label"
_TEXT_NAMES = ("content", "body", "document", "review", "comment", "message", "sentence", "description", "prompt")
_LABEL_NAMES = ("labels", "class", "target", "sentiment", "rating", "stars", "score", "grade", "y")
_YES_NO = ({"yes", "no"}, {"true", "false"}, {"0", "1"}, {"0.0", "1.0"}, {"y", "n"}, {"t", "f"})
_CATEGORY_NAMES = ("category", "topic", "folder")
"""Names of topic fields, proposed as the label if there is no better one."""
_TIME_NAMES = ("created_at", "timestamp", "time", "date", "datetime", "created", "published", "when")
_GROUP_NAMES = (
    "group", "author", "user", "user_id", "document_id", "doc_id", "conversation_id", "session_id", "thread_id",
    "source_id", "url", "file", "filename", "file_name", "path",
)  # fmt: skip
_LONG = 64
"""Longer texts, in characters, are not categories."""
_FEW_SHARE = 0.2
"""Largest share of distinct values of a category."""
_NEARLY_ALL = 0.95
"""A category with a more frequent value is not proposed as the label."""
_LARGE_BYTES = 2_000_000
"""Size of sources from which a vocabulary of 8,000 is proposed instead of 2,000."""


class Proposal(NamedTuple):
    """Proposed and requested fields."""

    text: str
    label: str | None
    metadata: tuple[str, ...]
    time: str | None
    key: str | None
    tokenizer: str
    is_guessed: bool
    """Whether a person must confirm."""
    format: Format | None = None
    """Set if the rows have the fields of a language model's format and no fields were requested."""
    could_be_label: Mapping[str, int] = MappingProxyType({})
    """Candidate label -> number of distinct values; includes the proposed label."""


class RequestedFields(NamedTuple):
    """Fields that the user named; None for the others."""

    text: str | None = None
    label: str | None = None
    without_label: bool = False
    metadata: tuple[str, ...] = ()
    time: str | None = None
    key: str | None = None
    tokenizer: str | None = None

    def named(self) -> list[tuple[str, str]]:
        named = [("--text", self.text), ("--label", self.label), ("--at", self.time), ("--group-by", self.key)]
        named += [("--metadata", name) for name in self.metadata]
        return [(name, option) for option, name in named if name is not None]


def propose(sources: Sequence[Path], request: RequestedFields) -> Proposal:
    """Propose fields from the first rows of each source.

    Raises `DataError` if they hold no text, and `ConfigError` if a requested field is missing from them and other
    fields would have to be proposed.
    """
    label_is_known = request.label is not None or request.without_label
    if request.text is not None and label_is_known and request.tokenizer is not None:
        label = None if request.without_label else request.label
        return Proposal(request.text, label, request.metadata, request.time, request.key, request.tokenizer, False)
    columns, num_rows = _sample(sources)
    if missing := [(name, option) for name, option in request.named() if name not in columns]:
        if request.tokenizer is None:
            raise _missing(*missing[0], columns, num_rows, sources)
        # Later rows may have it: the build checks all rows.
        label = None if request.without_label else request.label or LABEL
        return Proposal(
            request.text or TEXT, label, request.metadata, request.time, request.key, request.tokenizer, False
        )
    if request.text is None and not label_is_known and (format := _format_of(columns)) is not None:
        tokenizer = request.tokenizer or _new_tokenizer(sources)
        return Proposal(TEXT, None, request.metadata, request.time, request.key, tokenizer, True, format)
    by_name = (
        (request.text or TEXT) in columns and (label_is_known or LABEL in columns) and request.tokenizer is not None
    )
    text = request.text or _text_field(columns, sources)
    labels = _label_fields(columns, text, num_rows)
    label = None if request.without_label else request.label or next(iter(labels), None)
    if by_name:
        # Metadata is only proposed together with other fields.
        assert request.tokenizer is not None
        return Proposal(text, label, request.metadata, request.time, request.key, request.tokenizer, False)
    time = request.time or _named(columns, _TIME_NAMES, lambda values: all(map(_is_time, values)), {text, label})
    used = {text, label, time}
    key = request.key or _named(columns, _GROUP_NAMES, _has_duplicates, used)
    others = {name: values for name, values in columns.items() if name not in used | {key}}
    metadata = request.metadata or tuple(
        name for name, values in others.items() if _is_category(values, num_rows) and _is_free(name)
    )
    tokenizer = request.tokenizer or _new_tokenizer(sources)
    could_be = {} if label_is_known else {name: len(set(map(str, columns[name]))) for name in labels}
    return Proposal(text, label, metadata, time, key, tokenizer, True, could_be_label=could_be)


def _missing(
    name: str, option: str, columns: Mapping[str, list[Any]], num_rows: int, sources: Sequence[Path]
) -> ConfigError:
    # A table's columns are the same in all rows; for folders and JSON only the first rows are known.
    is_table = all(
        source.is_file() and next(iter_spans([source], SAMPLE_ROWS)).fields is not None for source in sources
    )
    is_all = is_table or num_rows < SAMPLE_ROWS // max(1, len(sources))
    rows = "every row" if is_all else f"the first {num_rows:,} rows"
    missing = f"{', '.join(map(str, sources))}: field '{name}' is missing from {rows}"
    found = missing_field(name, option, sorted(columns), missing=missing)
    return found if is_all else ConfigError(f"{found} If later rows have it, say --tokenizer, too.")


def _sample(sources: Sequence[Path]) -> tuple[dict[str, list[Any]], int]:
    """Return field -> present values in the first rows, and the number of these rows.

    Unreadable rows are skipped; the build reports all of them.
    """
    per_source = -(-SAMPLE_ROWS // max(1, len(sources)))
    columns: dict[str, list[Any]] = {}
    num_rows, errors = 0, list[DataError]()
    for source in sources:
        rows = chain.from_iterable(span.rows(on_error=errors.append) for span in iter_spans([source], SAMPLE_ROWS))
        for _, row in islice(rows, per_source):
            num_rows += 1
            for name, value in row.items():
                values = columns.setdefault(name, [])
                if not is_unlabelled(value):
                    values.append(value)
    if errors and not num_rows:
        raise errors[0]
    return columns, num_rows


def _format_of(columns: Mapping[str, list[Any]]) -> Format | None:
    if LABEL in columns or TEXT in columns:
        return None
    formats: tuple[Format, ...] = ("pairs", "chat")
    return next((name for name in formats if any(all(map(columns.get, field_set)) for field_set in FIELDS[name])), None)


def _text_field(columns: Mapping[str, list[Any]], sources: Sequence[Path]) -> str:
    if (found := likely_text(columns)) is None:
        raise DataError(
            f"{', '.join(map(str, sources))}: no field is of text; rows have: {', '.join(columns)}. Write the "
            "text "
            "into a field of its own."
        )
    return found


def likely_text(columns: Mapping[str, Sequence[Any]]) -> str | None:
    """Return the field with a usual name of texts, else the one with the longest texts; `columns` hold no nulls."""
    lengths = {
        name: sum(map(len, values)) / len(values)
        for name, values in columns.items()
        if values and all(isinstance(value, str) for value in values)
    }
    named = (name for name in (TEXT, *_TEXT_NAMES) if name in lengths)
    return next(named, max(lengths, key=lambda name: lengths[name], default=None))


def _label_fields(columns: Mapping[str, list[Any]], text: str, num_rows: int) -> list[str]:
    """Return candidate labels, most likely first: by name, the only yes-or-no field, topic fields, small categories."""
    if LABEL in columns and text != LABEL:
        return [LABEL]
    differ = {
        name: len(set(map(str, values)))
        for name, values in columns.items()
        if name != text and _is_category(values, num_rows) and len(set(map(str, values))) > 1
    }
    yes_no_fields = [name for name in differ if name not in _GROUP_NAMES and _is_yes_or_no(columns[name])]
    several = [
        name
        for name, count in sorted(differ.items(), key=lambda item: item[1])
        if all(isinstance(value, str) for value in columns[name])
        and count <= FEW
        and name not in _GROUP_NAMES
        and _largest_share(columns[name]) < _NEARLY_ALL
    ]
    likely = [*_LABEL_NAMES, *(yes_no_fields if len(yes_no_fields) == 1 else ()), *_CATEGORY_NAMES, *several]
    found = list(dict.fromkeys(name for name in likely if name in differ))
    return [*found, *(name for name in yes_no_fields if found and name not in found)]


def _named(columns: Mapping[str, list[Any]], names: Sequence[str], fits: Any, used: set[str | None]) -> str | None:
    return next((name for name in names if name not in used and columns.get(name) and fits(columns[name])), None)


def _is_category(values: Sequence[Any], num_rows: int) -> bool:
    if not values:
        return False
    if all(isinstance(value, int | float) for value in values):
        return True
    if not all(isinstance(value, str) for value in values):
        return False
    if all(_is_number(value) for value in values):
        return True
    return max(map(len, values)) <= _LONG and len(set(values)) <= max(2, _FEW_SHARE * num_rows)


def _is_yes_or_no(values: Sequence[Any]) -> bool:
    return {str(value).strip().lower() for value in values} in _YES_NO


def _largest_share(values: Sequence[Any]) -> float:
    return max(Counter(values).values()) / len(values)


def _is_free(name: str) -> bool:
    return name not in ("input_ids", "attention_mask", "label", "shard_id", "created_at")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_time(value: Any) -> bool:
    try:
        datetime.fromisoformat(value.strip())
    except (ValueError, TypeError, AttributeError):
        return False
    return True


def _has_duplicates(values: Sequence[Any]) -> bool:
    return len(set(map(str, values))) < len(values)


def _new_tokenizer(sources: Sequence[Path]) -> str:
    files = [path for source in sources for path in ([source] if source.is_file() else source.rglob("*"))]
    num_bytes = sum(path.stat().st_size for path in files if path.is_file())
    return "new:8000" if num_bytes > _LARGE_BYTES else "new:2000"
