"""The key that was probably meant by one that is no key: a field at any depth, by its name or a near spelling.

A class says in `also_called` what other tools call its fields; of equally good guesses the nearest one counts:
below the section in which the wrong key stands, then below the sections around it.
"""

from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from assay.base.nested_models import models_in

LEAST_LIKENESS = 0.7
"""The least likeness of two spellings; 1 where they are equal."""


def written_key(tree: Any, place: Sequence[str | int], *, is_lacking: bool = False) -> str:
    """The dotted key as a file has it: a place in its tree, without pydantic's words for one of a union.

    `is_lacking`: the last part of it is not there, and should be.
    """
    key, node = [], tree
    for index, part in enumerate(place):
        is_there = (isinstance(node, Mapping) and part in node) or (
            isinstance(node, list | tuple) and isinstance(part, int) and part < len(node)
        )
        if is_there or (is_lacking and index == len(place) - 1):
            key.append(str(part))
            node = node[part] if is_there else None
    return ".".join(key)


def keys_below(root: type[BaseModel], place: Sequence[str | int]) -> list[str]:
    """The keys that may stand in a section; of several kinds of it `type: a, b, ...` alone."""
    models = _sections_on_the_way(root, [str(part) for part in place])[-1][1]
    kinds = [str(kind) for model in models for kind in _kinds(model)]
    if len(models) > 1 and kinds:
        return [f"type: {' or '.join(dict.fromkeys(kinds))}"]
    return [field.alias or name for model in models[:1] for name, field in model.model_fields.items()]


def meant_key(root: type[BaseModel], place: Sequence[str | int]) -> str | None:
    """The dotted key that `place` (as pydantic names it) stands for; None where nothing is like it."""
    *sections, word = map(str, place)
    word = word.lower().replace("-", "_")
    best, best_likeness = None, LEAST_LIKENESS
    for prefix, models in reversed(_sections_on_the_way(root, sections)):
        for key, name in (each for model in models for each in _keys(prefix, model)):
            likeness = SequenceMatcher(None, word, name).ratio()
            if likeness > best_likeness:
                best, best_likeness = key, likeness
    return best


def _sections_on_the_way(
    root: type[BaseModel], sections: Sequence[str]
) -> list[tuple[str, list[type[BaseModel]]]]:
    """The dotted key of each section from the root to the last, and the models that may stand there."""
    way = [("", [root])]
    for section in sections:
        prefix, models = way[-1]
        fields = [model.model_fields[section] for model in models if section in model.model_fields]
        chosen = [model for model in models if section in _kinds(model)]
        if fields:
            models = [model for field in fields for model in models_in(field.annotation)]
        if chosen and not fields:
            way.append((prefix, chosen))  # pydantic's word for one of a union: no part of the key
        else:
            way.append((f"{prefix}{section}.", models))
    return way


def _kinds(model: type[BaseModel]) -> tuple[Any, ...]:
    kind = model.model_fields.get("type")
    return get_args(kind.annotation) if kind else ()


def _keys(
    prefix: str, model: type[BaseModel], around: frozenset[type[BaseModel]] = frozenset()
) -> Iterator[tuple[str, str]]:
    """Every key below a section with each name that it goes by, the section's own first."""
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
