"""One entry of a log whose entries are put only if absent: its text, its digest, and reading it back.

Each holds the digest of the one before it and its own, which counts its key in: so none can be replaced, moved
or taken out between others unnoticed.
"""

from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from assay.base.digest import canonical_json, sha256_of_bytes, sha256_of_json
from assay.base.errors import DamagedDataError


class LogRecord(Protocol):
    """A record with a `type` that selects its class within the log."""

    @property
    def type(self) -> str: ...

    def to_tree(self) -> dict[str, object]: ...


EntryT = TypeVar("EntryT", bound=LogRecord)


class Known(NamedTuple, Generic[EntryT]):
    """An entry of the log with its digests."""

    entry: EntryT
    sha256: str
    """Digest of the entry and its key."""
    previous_sha256: str
    """Digest of the previous entry; empty for the first."""


def entry_text(entry: EntryT, key: str, previous_sha256: str) -> tuple[bytes, Known[EntryT]]:
    """Return the bytes of an entry that follows `previous_sha256`, and the entry with its digests."""
    tree = {**entry.to_tree(), "type": entry.type, "previous_sha256": previous_sha256}
    sha256 = _entry_sha256(tree, key)
    data = canonical_json({**tree, "entry_sha256": sha256}).encode()
    return data, Known(entry, sha256, previous_sha256)


def read_entry(data: bytes, key: str, classes: Mapping[str, type[Any]], *, of: str) -> Known[Any]:
    """Read an entry of a log. `classes`: by type. `of`: the log's name for messages."""
    import json

    try:
        tree = json.loads(data)
        entry_class = classes[tree["type"]]
        digest = tree.pop("entry_sha256", "")
        sha256 = digest if _as_put_sha256(data, digest, key) == digest else _entry_sha256(tree, key)
        previous = tree.pop("previous_sha256", "")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise changed(key, f"not an entry of a {of} ({error})") from error
    if digest != sha256:
        raise changed(key, "it has not the digest that it was put with")
    return Known(entry_class.from_tree(tree, source=key), sha256, previous)


def changed(key: str, what: str) -> DamagedDataError:
    """Return the error for an entry that was changed."""
    return DamagedDataError(
        f"{key}: {what}. The file was changed after it was put; restore it from a backup of the run's store."
    )


def _as_put_sha256(data: bytes, digest: str, key: str) -> str:
    """Return the digest of an entry with canonical text without serializing it again; a different digest for
    other text."""
    entry = data.replace(f'"entry_sha256":"{digest}",'.encode(), b"", 1)
    return sha256_of_bytes(b'{"entry":%b,"key":%b}' % (entry, canonical_json(key).encode()))


def _entry_sha256(tree: dict[str, object], key: str) -> str:
    """Return the digest of an entry and its key, so that a swapped entry is detected."""
    return sha256_of_json({"entry": tree, "key": key})
