"""The suggestion for an unknown key: the field with the most similar name, at any depth.

A class lists in `also_called` the names that other tools use for its fields. Of equally similar fields the
nearest one wins: first below the section of the wrong key, then below its parents.
"""

from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from assay.base.model_fields import models_in

MIN_SIMILARITY = 0.7
"""The least similarity of a suggestion; 1 means equal."""


def written_key(tree: Any, loc: Sequence[str | int], *, is_lacking: bool = False) -> str:
    """Return the dotted key in the file for pydantic's error location, without the tags of unions.

    `is_lacking`: the last part is a required key that the file does not have.
    """
    key, node = [], tree
    for index, part in enumerate(loc):
        exists = (isinstance(node, Mapping) and part in node) or (
            isinstance(node, list | tuple) and isinstance(part, int) and part < len(node)
        )
        if exists or (is_lacking and index == len(loc) - 1):
            key.append(str(part))
            node = node[part] if exists else None
    return ".".join(key)


def keys_below(root: type[BaseModel], loc: Sequence[str | int]) -> list[str]:
    """Return the keys that a section accepts; only `type: a or b` for a union."""
    models = _sections_along(root, [str(part) for part in loc])[-1][1]
    kinds = [str(kind) for model in models for kind in _kinds(model)]
    if len(models) > 1 and kinds:
        return [f"type: {' or '.join(dict.fromkeys(kinds))}"]
    return [field.alias or name for model in models[:1] for name, field in model.model_fields.items()]


def closest_key(root: type[BaseModel], loc: Sequence[str | int]) -> str | None:
    """Return the dotted key most similar to the unknown one at `loc`; None if none is similar enough."""
    *sections, word = map(str, loc)
    word = word.lower().replace("-", "_")
    best, best_similarity = None, MIN_SIMILARITY
    for prefix, models in reversed(_sections_along(root, sections)):
        for key, name in (entry for model in models for entry in _keys(prefix, model)):
            similarity = SequenceMatcher(None, word, name).ratio()
            if similarity > best_similarity:
                best, best_similarity = key, similarity
    return best


def _sections_along(root: type[BaseModel], sections: Sequence[str]) -> list[tuple[str, list[type[BaseModel]]]]:
    """Return the dotted key of each section from the root down, with the models that it accepts."""
    path = [("", [root])]
    for section in sections:
        prefix, models = path[-1]
        fields = [model.model_fields[section] for model in models if section in model.model_fields]
        chosen = [model for model in models if section in _kinds(model)]
        if fields:
            models = [model for field in fields for model in models_in(field.annotation)]
        if chosen and not fields:
            path.append((prefix, chosen))  # the tag of a union, which is not part of the key
        else:
            path.append((f"{prefix}{section}.", models))
    return path


def _kinds(model: type[BaseModel]) -> tuple[Any, ...]:
    kind = model.model_fields.get("type")
    return get_args(kind.annotation) if kind else ()


def _keys(
    prefix: str, model: type[BaseModel], around: frozenset[type[BaseModel]] = frozenset()
) -> Iterator[tuple[str, str]]:
    """Yield every key below a section with each of its names, the section's own keys first."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{field.alias or name}", field.alias or name
    for word, name in getattr(model, "also_called", {}).items():
        yield f"{prefix}{name}", word
    for name, field in model.model_fields.items():
        part = f"{name}.NAME" if get_origin(field.annotation) is dict else name
        for nested in models_in(field.annotation):
            if nested in around or nested is model:
                continue
            yield from _keys(f"{prefix}{part}.", nested, around | {model})
