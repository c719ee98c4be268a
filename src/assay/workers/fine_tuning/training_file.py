"""Reads and validates a training or validation file line by line.

Rows for language models are parsed by the dataset builder's own reader, so a file that passes here can be built, and
all faults are reported at once.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple

import xxhash

from assay.base.errors import DataError
from assay.base.parsing.nesting import DuplicateKeyError, TooDeepError, object_of_pairs, parse_json
from assay.base.value_text import kind_text
from assay.data.dataset.formats.rows import RowReader
from assay.data.dataset.raw.lines import json_fault
from assay.scoring.json_lines import holds_nul
from assay.serving.methods import BETWEEN_MESSAGES

MAX_FAULTS = 100
MAX_LINE_BYTES = 16 << 20
_BOM = b"\xef\xbb\xbf"
"""Starts a file, or a concatenated one."""


class Fault(NamedTuple):
    """A fault of one line."""

    line: int
    """From 1."""
    what: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}"


def file_problem(name: str, num_rows: int, faults: Sequence[Fault]) -> str | None:
    """Return why a file cannot be used, or None. `faults`: at most `MAX_FAULTS`; with that many, the rest was not
    read."""
    if faults:
        more = f" (the first {MAX_FAULTS} are listed)" if len(faults) == MAX_FAULTS else ""
        lines = "line" if len(faults) == 1 else "lines"
        text = "; ".join(str(fault) for fault in faults)
        return f"Invalid file {name}: {len(faults)} {lines} cannot be used{more}: {text}"
    return None if num_rows else f"Invalid file {name}: it has no rows."


def learns_all(label: str | float) -> str | None:  # noqa: ARG001
    """Accept all labels."""
    return None


def nobody_listens(line: int, digest: int) -> None:
    """Ignore the digests of rows."""


def read_training_file(
    lines: Iterable[bytes],
    reader: RowReader,
    out: IO[bytes],
    *,
    extra_fields: Mapping[str, Any] | None = None,
    seen: Callable[[int, int], object] = nobody_listens,
    label_problem: Callable[[str | float], str | None] = learns_all,
) -> tuple[int, list[Fault]]:
    """Validate all lines and write the rows to `out`, one JSON object per line, in constant memory. Return the number
    of rows and the first faults.

    `extra_fields`: written with each row. `seen`: called with the line number and a digest of the trained text, which
    copies share. `fault_of_label`: label -> why it is invalid, or None.
    """
    faults: list[Fault] = []
    num_rows = 0
    for number, line in enumerate(lines, start=1):
        text = without_bom(line)
        if not text.strip():
            continue
        try:
            row, trained_text = _row_of(text, reader, label_problem)
        except DataError as error:
            faults.append(Fault(number, str(error).removeprefix(": ").removesuffix(".")))
            if len(faults) == MAX_FAULTS:
                break
            continue
        num_rows += 1
        seen(number, xxhash.xxh3_64_intdigest(trained_text.encode()))
        out.write(json.dumps(_with_fields(row, extra_fields, reader), ensure_ascii=False).encode() + b"\n")
    return num_rows, faults


def _with_fields(row: dict[str, Any], extra_fields: Mapping[str, Any] | None, reader: RowReader) -> dict[str, Any]:
    """Return the row with the extra fields, which graders must not see: they get the original row as `item`."""
    if extra_fields is None:
        return row
    is_item = reader.format == "prompts" and row.get("item") is None
    return {**row, **({"item": row} if is_item else {}), **extra_fields}


def _row_of(
    line: bytes, reader: RowReader, label_problem: Callable[[str | float], str | None]
) -> tuple[dict[str, Any], str]:
    """Parse a row; also return the text that identifies copies. Raises `DataError`."""
    row = json_object(line)
    if reader.format == "labelled":
        labelled = _labelled(row)
        if (fault := label_problem(labelled["label"])) is not None:
            raise DataError(fault)
        return labelled, labelled["text"]
    if (sample := reader.read(row, "")) is None:
        raise DataError("it has no text to train on")
    return row, sample.group if reader.format == "prompts" else sample.text


def without_bom(line: bytes) -> bytes:
    """Remove a byte order mark."""
    return line.removeprefix(_BOM)


def json_object(line: bytes) -> dict[str, Any]:
    """Parse a line. Raises `DataError`."""
    if len(line) > MAX_LINE_BYTES:
        raise DataError(f"it has more than {MAX_LINE_BYTES >> 20} MB")
    try:
        row = parse_json(line.decode(), object_pairs_hook=object_of_pairs)
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 (byte {error.start})") from error
    except (TooDeepError, DuplicateKeyError) as error:
        raise DataError(str(error)) from error
    except UnicodeEncodeError as error:
        raise DataError("invalid Unicode (a lone surrogate)") from error
    except ValueError as error:
        column, fault = json_fault(error)
        raise DataError(f"not JSON{column}: {fault}") from error
    if holds_nul(line.decode()):
        raise DataError("a text with U+0000 (a NUL character)")
    if not isinstance(row, dict):
        raise DataError(f"expected a JSON object, found {kind_text(row)}")
    return row


def _labelled(row: dict[str, Any]) -> dict[str, Any]:
    """Return `{text, label}`; `messages` are joined to a text."""
    if unknown := sorted(set(row) - {"text", "messages", "label"}):
        raise DataError(f"unknown key {unknown[0]!r:.60}; a row has 'text' or 'messages', and 'label'")
    label = row.get("label")
    if not isinstance(label, str | int | float) or label == "":
        raise DataError(f"'label' must be a text or a number, found {kind_text(label)}")
    if ("text" in row) == ("messages" in row):
        raise DataError("a row has either 'text' or 'messages'")
    text = row["text"] if "text" in row else BETWEEN_MESSAGES.join(_contents(row["messages"]))
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"'text' must be a non-empty string, found {kind_text(text)}")
    return {"text": text, "label": label}


def _contents(messages: Any) -> Iterator[str]:
    if not isinstance(messages, list) or not messages:
        raise DataError(f"'messages' must be a list of messages, found {kind_text(messages)}")
    for number, message in enumerate(messages, start=1):
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, str):
            raise DataError(f"message {number}: 'content' must be a text, found {kind_text(content)}")
        yield content
