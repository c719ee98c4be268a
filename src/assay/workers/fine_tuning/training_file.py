"""The rows of a training or validation file: read line by line, each fault with its line, and written down.

A row that is for a language model is read by the very reader that the dataset is built with; so what passes
here is built, and what is refused here would have been refused there, but one at a time.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
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
"""Begins a file, or one that was put behind another: as in a dataset's sources."""


class Fault(NamedTuple):
    """What is wrong with one line."""

    line: int
    """From 1."""
    what: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}"


class ReadFile(NamedTuple):
    """What became of a file."""

    num_rows: int
    faults: tuple[Fault, ...]
    """At most `MAX_FAULTS`; where there are as many, the rest was not looked at."""

    def problem(self, name: str) -> str | None:
        """Why a job cannot use it; None where it can."""
        if self.faults:
            more = f" (the first {MAX_FAULTS} are named)" if len(self.faults) == MAX_FAULTS else ""
            said = "; ".join(str(fault) for fault in self.faults)
            lines = "line" if len(self.faults) == 1 else "lines"
            return f"Invalid file {name}: {len(self.faults)} {lines} cannot be used{more}: {said}"
        return None if self.num_rows else f"Invalid file {name}: it has no rows."


def learns_all(label: str | float) -> str | None:  # noqa: ARG001
    """For who knows nothing of the labels that there may be."""
    return None


def nobody_listens(line: int, digest: int) -> None:
    """For who does not ask which rows there are."""


def read_training_file(
    lines: Iterable[bytes],
    reader: RowReader,
    out: IO[bytes],
    *,
    beside: Mapping[str, Any] | None = None,
    seen: Callable[[int, int], object] = nobody_listens,
    fault_of_label: Callable[[str | float], str | None] = learns_all,
) -> ReadFile:
    """Check every line, and write the rows to `out`, one JSON object a line; memory is that of a line.

    `beside`: what is written beside each row. `seen` is called with the line of each row, and a digest of what
    is learned of it: rows that share it are copies. `fault_of_label`: why a label is none that is learned.
    """
    faults: list[Fault] = []
    num_rows = 0
    for number, line in enumerate(lines, start=1):
        text = without_bom(line)
        if not text.strip():
            continue
        try:
            row, learned = _row_of(text, reader, fault_of_label)
        except DataError as error:
            faults.append(Fault(number, str(error).removeprefix(": ").removesuffix(".")))
            if len(faults) == MAX_FAULTS:
                break
            continue
        num_rows += 1
        seen(number, xxhash.xxh3_64_intdigest(learned.encode()))
        out.write(json.dumps(_beside(row, beside, reader), ensure_ascii=False).encode() + b"\n")
    return ReadFile(num_rows, tuple(faults))


def _beside(row: dict[str, Any], beside: Mapping[str, Any] | None, reader: RowReader) -> dict[str, Any]:
    """The row with what stands beside it, which graders do not see: theirs is the row as it was."""
    if beside is None:
        return row
    is_item = reader.format == "prompts" and row.get("item") is None
    return {**row, **({"item": row} if is_item else {}), **beside}


def _row_of(
    line: bytes, reader: RowReader, fault_of_label: Callable[[str | float], str | None]
) -> tuple[dict[str, Any], str]:
    """One row as the dataset's builder reads it, and the text that copies share; `DataError` says what is
    wrong."""
    row = json_object(line)
    if reader.format == "labelled":
        labelled = _labelled(row)
        if (fault := fault_of_label(labelled["label"])) is not None:
            raise DataError(fault)
        return labelled, labelled["text"]
    if (said := reader.read(row, "")) is None:
        raise DataError("it says nothing")
    return row, said.group if reader.format == "prompts" else said.text


def without_bom(line: bytes) -> bytes:
    """A line without the byte order mark that a file may begin with."""
    return line.removeprefix(_BOM)


def json_object(line: bytes) -> dict[str, Any]:
    """A line's JSON object; `DataError` says what is wrong."""
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
        raise DataError("half a character (a lone surrogate)") from error
    except ValueError as error:
        column, fault = json_fault(error)
        raise DataError(f"not JSON{column}: {fault}") from error
    if holds_nul(line.decode()):
        raise DataError("a text with U+0000 (a NUL character)")
    if not isinstance(row, dict):
        raise DataError(f"expected a JSON object, found {kind_text(row)}")
    return row


def _labelled(row: dict[str, Any]) -> dict[str, Any]:
    """`{text, label}`, or `{messages, label}`, whose messages are joined to a text."""
    if unknown := sorted(set(row) - {"text", "messages", "label"}):
        raise DataError(f"unknown key {unknown[0]!r:.60}; a row has 'text' or 'messages', and 'label'")
    label = row.get("label")
    if not isinstance(label, str | int | float) or label == "":
        raise DataError(f"'label' must be a text or a number, found {kind_text(label)}")
    if ("text" in row) == ("messages" in row):
        raise DataError("a row has either 'text' or 'messages'")
    text = row["text"] if "text" in row else BETWEEN_MESSAGES.join(_contents(row["messages"]))
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"'text' must be a text that says something, found {kind_text(text)}")
    return {"text": text, "label": label}


def _contents(messages: Any) -> Iterator[str]:
    if not isinstance(messages, list) or not messages:
        raise DataError(f"'messages' must be a list of messages, found {kind_text(messages)}")
    for number, message in enumerate(messages, start=1):
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, str):
            raise DataError(f"message {number}: 'content' must be a text, found {kind_text(content)}")
        yield content
