"""Digests, by which records name each other and their files.

SHA-256 identifies what must be provable later (files of a commit, records). xxh3 checks bytes on the hot path
(a column chunk before it is decoded), where it costs less than the read.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def canonical_json(value: Any) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces; raises `ValueError` for NaN and infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def sha256_of_json(value: Any) -> str:
    """Return the SHA-256 (hex) of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def sha256_of_bytes(data: bytes | memoryview) -> str:
    """Return the SHA-256 (hex) of `data`."""
    return hashlib.sha256(data).hexdigest()


def sha256_of_parts(parts: Iterable[bytes | memoryview]) -> str:
    """Return the SHA-256 (hex) of the concatenation of `parts`."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 (hex) of a file, which is read block by block."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
