"""Valid object keys: the same rules in every store, and no key leads out of it.

    runs/a/log/00000007.json      segments between slashes, as they are
    ../b   /etc/passwd   a//b   a/./b   a/   a\\0b     none of these

A folder would read `a//b`, `a/./b` and `a/b` as one file, an object store as three objects or an error; so only
one spelling is a key. Keys come from logs and manifests that anybody may have written, and what a request says
is no key at all: it is looked up, or stands in the object.
"""

import re
from typing import NamedTuple

from assay.base.errors import StoreError

UNFINISHED = ".unfinished-"
"""Prefix of files that are being written in a folder; listings omit them."""
MAX_KEY_BYTES = 1024
MAX_SEGMENT_BYTES = 255
"""Limits of S3 keys and of file names."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PLAIN = re.compile(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,99}(?:/[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,99}){0,7}")
"""Fast path: nearly all keys match it."""


class ObjectInfo(NamedTuple):
    """One object in a listing."""

    key: str
    num_bytes: int


def require_key(url: str, key: str) -> None:
    """Raise `StoreError` if the key is invalid."""
    if _PLAIN.fullmatch(key):
        return
    segments = key.split("/")
    if problem := _problem(segments) or _problem_of_last(segments[-1]):
        raise _refused(url, key, problem)


def require_prefix(url: str, prefix: str) -> None:
    """Raise `StoreError` if no valid key has this prefix; its last segment may be partial or empty."""
    segments = prefix.split("/")
    if problem := _problem([*segments[:-1], segments[-1] or "x"]):
        raise _refused(url, prefix, problem)


def _refused(url: str, key: str, problem: str) -> StoreError:
    shown = key.encode("utf-8", "backslashreplace").decode()
    return StoreError(
        f"{url}: {shown[:200]!r} {problem}, which no assay wrote. Nothing was touched: ask whoever gave you "
        "this run or dataset."
    )


def _problem(segments: list[str]) -> str:
    key = "/".join(segments)
    if segments[0] == "" or ".." in segments:
        return "leads out of this store"
    if "" in segments or "." in segments:
        return "is not the one spelling of a key (an empty segment, or '.')"
    if _CONTROL.search(key):
        return "holds a control character"
    try:
        num_bytes = [len(segment.encode()) for segment in segments]
    except UnicodeEncodeError:
        return "is not Unicode text"
    if max(num_bytes) > MAX_SEGMENT_BYTES or sum(num_bytes) + len(segments) - 1 > MAX_KEY_BYTES:
        return f"is longer than a key may be ({MAX_KEY_BYTES} bytes, a segment {MAX_SEGMENT_BYTES})"
    return ""


def _problem_of_last(name: str) -> str:
    return "has the name of an unfinished file" if name.startswith(UNFINISHED) else ""
