"""Digests: the names by which one record points at another.

SHA-256 is for what must be proved later (files of a commit, records); xxh3 is for what is checked on
the hot path (a column chunk before it is decoded), where it costs less than the read.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def canonical_json(value: Any) -> str:
    """One spelling for equal values: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def sha256_of_json(value: Any) -> str:
    """SHA-256 (hex) of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def sha256_of_bytes(data: bytes | memoryview) -> str:
    """SHA-256 (hex) of some bytes."""
    return hashlib.sha256(data).hexdigest()


def sha256_of_parts(parts: Iterable[bytes | memoryview]) -> str:
    """SHA-256 (hex) of the concatenation of `parts`."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def sha256_of_file(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes, read block by block."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
