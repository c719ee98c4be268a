"""Read the items and held-out texts of benchmarks."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from assay.base.digest import sha256_of_json
from assay.base.errors import DataError
from assay.base.units import number_of
from assay.evals.config import (
    Benchmark,
    BitsPerByte,
    Classification,
    Generation,
    HeldOutRows,
    MultipleChoice,
    RegistryBenchmark,
    Suite,
    read_suite,
)
from assay.inference.protocol import Message
from assay.scoring.graders import check_item_fields, check_sample_fields
from assay.scoring.json_lines import json_lines
from assay.scoring.registry.registry import Registry

MAX_REMEMBERED = 65_536
"""Number of file digests that a process caches; enough for a large code base as held-out text."""


class _Stamp(NamedTuple):
    """What identifies the version of a file that was read."""

    path: str
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int


def suite_sha256(path: Path, suite: Suite | None = None) -> str:
    """Return the SHA-256 of the suite in a file and of all files that it names; `suite` if it was read before.

    Without files, it is the digest of the definition. A missing file counts as absent; evaluation reports it.
    """
    suite = read_suite(path) if suite is None else suite
    files = named_files(suite, path.parent)
    return sha256_of_json([suite.sha256(), files]) if files else suite.sha256()


def named_files(suite: Suite, folder: Path) -> dict[str, str | None]:
    """Map the name of each file (relative to the suite's folder if below it) to its SHA-256; None if it is missing."""
    paths = {path for benchmark in suite.benchmarks for path in _paths(benchmark, folder)}
    return {_name(path, folder): _sha256(path) for path in sorted(paths)}


def held_out_files(config: BitsPerByte, folder: Path) -> list[Path]:
    """Return the files that a benchmark's patterns match, in order."""
    excluded = {path for pattern in config.exclude for path in folder.glob(pattern)}
    found = {path for pattern in config.files for path in folder.glob(pattern) if path.is_file()}
    return sorted(found - excluded)


def _paths(benchmark: Benchmark, folder: Path) -> Iterator[Path]:
    match benchmark:
        case MultipleChoice() | Generation():
            yield folder / benchmark.items
        case BitsPerByte():
            yield from held_out_files(benchmark, folder)
        case RegistryBenchmark():
            yield from _registry_files(folder / benchmark.registry, benchmark.eval)
        case Classification() | HeldOutRows():
            # Its items are the rows that each run's own recipe holds out; their results name them.
            return


def _registry_files(registry: Path, name: str) -> tuple[Path, ...]:
    """Return all definitions, because an alias may point to any of them, and the data of this eval only."""
    defined = [path for part in ("evals", "modelgraded") for path in sorted((registry / part).glob("*.yaml"))]
    if not defined:
        return (registry / "evals",)
    return (*defined, *_data_files(registry, name, tuple(_stamp(path) for path in defined)))


@lru_cache(maxsize=64)
def _data_files(registry: Path, name: str, definitions: tuple[_Stamp, ...]) -> tuple[Path, ...]:  # noqa: ARG001
    return Registry(registry).data_files(name)


def _sha256(path: Path) -> str | None:
    return _sha256_of_stamped(_stamp(path)) if path.is_file() else None


def _stamp(path: Path) -> _Stamp:
    found = path.stat()
    return _Stamp(str(path), found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@lru_cache(maxsize=MAX_REMEMBERED)
def _sha256_of_stamped(stamp: _Stamp) -> str:
    with Path(stamp.path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


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
