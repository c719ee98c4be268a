"""The base class of records: frozen, versioned JSON that names its inputs by digest.

`assay.base.versioned` says how a record changes without breaking what is on disk. `tests/golden/records.jsonl`
holds one record of every kind.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import ConfigDict, ValidationError

from assay.base.digest import canonical_json, sha256_of_json
from assay.base.errors import DataError
from assay.base.versioned import Versioned, stored_problem


class Record(Versioned):
    """One fact that a stage hands to the next. Never edited: a correction is a new record."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    kind: ClassVar[str]
    """The record's type, as written in its JSON: the name of its class in small letters (`BandCheck` is a
    `band_check`), unless it or a base says otherwise."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if "kind" not in vars(cls) and not getattr(cls, "kind", ""):
            cls.kind = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def to_json(self) -> str:
        """Canonical JSON with `kind` and `version`; equal records have equal text."""
        return canonical_json(self.to_tree())

    def to_sealed_json(self) -> str:
        """Return `to_json()` with the SHA-256 of the text, so that a corrupt file is detected."""
        tree = self.to_tree()
        return canonical_json({**tree, DIGEST_KEY: sha256_of_json(tree)})

    def to_tree(self) -> dict[str, object]:
        """The JSON tree with `kind` and `version`."""
        return {"kind": self.kind, "version": self.version, **self.model_dump(mode="json")}

    def digest(self) -> str:
        """SHA-256 of the canonical JSON: the name by which other records point here."""
        return sha256_of_json(self.to_tree())

    @classmethod
    def from_json(cls, text: str | bytes, *, source: str | Path) -> Self:
        """Read one record of any version up to today's, sealed or not; `source` is what an error names."""
        tree = _tree(text, source)
        digest = tree.pop(DIGEST_KEY, None) if isinstance(tree, dict) else None
        if digest is not None and digest != _sha256(tree):
            raise DataError(f"{source}: it was changed after it was written (its sha256 differs). Restore it.")
        return cls.from_tree(tree, source=source)

    @classmethod
    def from_tree(cls, tree: Any, *, source: str | Path) -> Self:
        """Read a record from its JSON tree with `kind` and `version`."""
        if not isinstance(tree, dict) or tree.get("kind") != cls.kind or "version" not in tree:
            raise DataError(f"{source}: not a '{cls.kind}' record.")
        try:
            return cls.from_stored({key: value for key, value in tree.items() if key != "kind"})
        except ValidationError as error:
            wrote = str(tree.get("code_version", ""))
            raise DataError(
                f"{source}: a '{cls.kind}' record, version {tree['version']}: {stored_problem(error, wrote=wrote)}."
            ) from error


DIGEST_KEY = "record_sha256"
"""The key of a sealed record's digest."""


def _sha256(tree: Any) -> str | None:
    try:
        return sha256_of_json(tree)
    except ValueError:  # what no record holds: infinity, half a character
        return None


RecordT = TypeVar("RecordT", bound=Record)


def record_of_kind(classes: Iterable[type[RecordT]], text: str | bytes, *, source: str | Path) -> RecordT:
    """Read one record of any of several kinds, by the kind that its JSON names."""
    kinds = {class_.kind: class_ for class_ in classes}
    tree = _tree(text, source)
    kind = str(tree.get("kind")) if isinstance(tree, dict) else ""
    if kind not in kinds:
        raise DataError(f"{source}: a record of kind '{kind}', expected {' or '.join(sorted(kinds))}.")
    return kinds[kind].from_tree(tree, source=source)


def readable_records(record_class: type[RecordT], paths: Iterable[Path]) -> tuple[list[RecordT], list[str]]:
    """Return the readable records, and a message for each unreadable file: for records that are informative only."""
    records, problems = [], []
    for path in paths:
        try:
            records.append(record_class.from_json(path.read_bytes(), source=path))
        except DataError as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"{path}: cannot be read: {error.strerror}.")
    return records, problems


def _tree(text: str | bytes, source: str | Path) -> Any:
    from assay.base.parsing.nesting import parse_json

    try:
        return parse_json(text)
    except ValueError as error:
        raise DataError(f"{source}: not JSON ({error}). The file was cut short or overwritten.") from error
