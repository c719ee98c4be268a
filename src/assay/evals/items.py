"""Read the items and held-out texts of benchmarks."""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from assay.base.errors import DataError
from assay.base.units import number_of
from assay.evals.config import BitsPerByte, Generation, MultipleChoice
from assay.evals.contents import held_out_files
from assay.inference.protocol import Message
from assay.scoring.graders import check_item_fields, check_sample_fields
from assay.scoring.json_lines import json_lines


class Item(NamedTuple):
    """One line of a benchmark's items."""

    item_id: str
    cluster: str
    fields: Mapping[str, Any]
    """The line, which templates access as `item.…`."""


class HeldOutText(NamedTuple):
    """One held-out file."""

    name: str
    """Relative to the suite's folder."""
    text: str


def read_items(path: Path) -> list[Item]:
    """Read every line of a JSONL file. `id` defaults to the line's number, and `cluster` to the id."""
    if not path.is_file():
        raise DataError(f"{path}: no such file. Name the benchmark's items, a JSONL file.")
    items: dict[str, Item] = {}
    for number, fields in json_lines(path.read_bytes(), path, of_what="items").items():
        item_id = str(fields.get("id", f"{number:06d}"))
        if item_id in items:
            raise DataError(f"{path}: id '{item_id}' occurs twice. Give each item an id of its own.")
        items[item_id] = Item(item_id, str(fields.get("cluster", item_id)), fields)
    return list(items.values())


def checked_items(config: MultipleChoice | Generation, folder: Path) -> list[Item]:
    """Return a benchmark's items. Raises `ConfigError` if they lack a field that the grader reads."""
    items = read_items(folder / config.items)
    if isinstance(config, Generation):
        where = f"benchmark '{config.name}'"
        check_sample_fields(config.grader, where)
        field_counts = Counter(name for item in items for name, value in item.fields.items() if value is not None)
        check_item_fields(
            config.grader,
            field_counts,
            len(items),
            where=where,
            source=str(folder / config.items),
            first_without=lambda name: next(item.item_id for item in items if item.fields.get(name) is None),
        )
    return items


def conversation(item: Item, path: Path) -> list[Message]:
    """Return the messages for the model: `messages`, or `prompt` as a user's message."""
    if "messages" in item.fields:
        try:
            return [Message(role=turn["role"], content=turn["content"]) for turn in item.fields["messages"]]
        except (KeyError, TypeError) as error:
            raise DataError(f"{path}: item '{item.item_id}': messages need role and content each.") from error
    if isinstance(item.fields.get("prompt"), str):
        return [Message(role="user", content=item.fields["prompt"])]
    raise DataError(f"{path}: item '{item.item_id}' has neither messages nor a prompt.")


def checked_choices(item: Item, path: Path) -> tuple[str, ...]:
    """Return the choices of a multiple-choice item. Raises `DataError` if prompt, choices or answer are invalid."""
    seen = {key: item.fields.get(key) for key in ("prompt", "choices", "answer")}
    prompt, choices, correct_index = seen.values()
    is_right = (
        isinstance(prompt, str)
        and isinstance(choices, list)
        and len(choices) >= 2
        and all(isinstance(choice, str) and choice for choice in choices)
        and isinstance(correct_index, int)
        and 0 <= correct_index < len(choices)
    )
    if not is_right:
        raise DataError(
            f"{path}: item '{item.item_id}': expected prompt (text), choices (two texts or more) and answer "
            f"(index from 0), found {json.dumps(seen)[:200]}."
        )
    return tuple(choices)  # type: ignore[arg-type]


def read_documents(config: BitsPerByte, folder: Path) -> list[HeldOutText]:
    """Return the non-empty held-out texts. Raises `DataError` if there is none, or one is not UTF-8."""
    paths = held_out_files(config, folder)
    if not paths:
        raise DataError(f"benchmark '{config.name}': {', '.join(config.files)} match no file in {folder}.")
    documents = []
    for path in paths:
        try:
            # Read as bytes: text mode would score CRLF as LF.
            text = path.read_bytes().decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not UTF-8 text ({error.reason}). Name it in exclude.") from error
        if text:
            documents.append(HeldOutText(path.relative_to(folder).as_posix(), text))
    if not documents:
        raise DataError(f"benchmark '{config.name}': all of {number_of(len(paths), 'file')} that match are empty.")
    return documents
