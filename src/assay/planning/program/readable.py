"""Extracts the readable part of an invalid file, so that one invalid value hides no other problem.

    tree --remove what the schema rejects, repeatedly--> a valid tree, and the keys that are missing

If an entry was removed from a list, `Readable.key` maps the remaining indices to those of the file.
"""

import copy
from collections.abc import Collection, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

UNREAD = "unread"
"""Stands for a name that could not be read."""

ModelT = TypeVar("ModelT", bound=BaseModel)

_STAND_INS: dict[str, Any] = {
    "name": UNREAD,
    "title": "",
    "calendar": {"start": "2027-01-04", "weeks": 52},
    "capacity": {"devices": 1},
    "budget": {"device_hours": 1},
    "decision": {"decided_by": UNREAD, "by": "end of week 1"},
    "now": "week 1",
}
"""Substitutes for required keys of a program or of its notes, so that the rest can be checked."""

_WITH_NAMES = ("capacity",)
"""Sections that define names; if nothing of one can be read, uses of its names are not reported."""


class Readable(NamedTuple, Generic[ModelT]):
    """The readable part of a file."""

    found: ModelT
    unread: tuple[str, ...]
    """Dotted keys, as in the file, of what was removed."""
    indices: Any
    """The tree's shape; each list with its entries' indices in the file."""

    def key(self, key: str) -> str:
        """Return where a key of `found` is in the file."""
        return _key_in_file(self.indices, key.split("."))


def readable(values: dict[str, Any], schema: type[ModelT], error: ValidationError) -> Readable[ModelT] | None:
    """Return the readable part; None if too little remains."""
    tree, unread, indices = copy.deepcopy(values), list[str](), _indices(values)
    while True:
        path = _take_out(tree, [part for part in error.errors()[0]["loc"] if part != "[key]"])
        if path is None:
            return None
        unread.append(_key_in_file(indices, path))
        _forget(indices, path)
        try:
            return Readable(schema.model_validate(tree), tuple(unread), indices)
        except ValidationError as another:
            error = another


def is_touched(key: str, unread: Collection[str]) -> bool:
    """Return whether a key, a part of it or a parent of it could not be read."""
    return any(f"{key}.".startswith(f"{unread_key}.") or unread_key.startswith(f"{key}.") for unread_key in unread)


def _take_out(tree: dict[str, Any], location: Sequence[str | int]) -> list[str | int] | None:
    """Remove the value at a location, or its nearest existing parent; return the path."""
    branch: Any = tree
    parents: list[tuple[Any, str | int]] = []
    for part in location:
        exists = part in branch if isinstance(branch, dict) else isinstance(part, int) and part < _length(branch)
        if not exists and parents:
            continue  # the tag of a union, or the place in a list that the file does not write as one
        if not exists:
            break
        parents.append((branch, part))
        branch = branch[part]
    keys = [str(part) for part in location]
    if not parents:
        if len(keys) != 1 or keys[0] not in _STAND_INS or keys[0] in _WITH_NAMES:
            return None
        tree[keys[0]] = _STAND_INS[keys[0]]
        return [keys[0]]
    if len(keys) == 2 and len(parents) == 1 and keys[1] in _STAND_INS.get(keys[0], ()):
        branch[keys[1]] = _STAND_INS[keys[0]][keys[1]]
        return [*keys]
    inside, part = parents[-1]
    del inside[part]
    return [part for _, part in parents]


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0


def _indices(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _indices(inner) for key, inner in value.items()}
    return list(enumerate(map(_indices, value))) if isinstance(value, list) else None


def _key_in_file(indices: Any, path: Sequence[str | int]) -> str:
    parts = []
    for part in map(str, path):
        if isinstance(indices, list) and part.isdigit() and int(part) < len(indices):
            index, indices = indices[int(part)]
            parts.append(str(index))
        else:
            indices = indices.get(part) if isinstance(indices, dict) else None
            parts.append(part)
    return ".".join(parts)


def _forget(indices: Any, path: Sequence[str | int]) -> None:
    """Update the indices of a list from which an entry was removed."""
    *parents, last = path
    for part in parents:
        if isinstance(indices, list) and isinstance(part, int):
            _, indices = indices[part]
        else:
            indices = indices.get(str(part)) if isinstance(indices, dict) else None
    if isinstance(indices, list) and isinstance(last, int):
        del indices[last]
