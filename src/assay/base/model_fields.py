"""What the fields of a pydantic model mean, and the models in them.

Docstrings are read from the source on demand: pydantic would read them while it builds a class, which is a fifth of
the run time of a short command.
"""

import ast
import inspect
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import zip_longest
from typing import Any, get_args

from pydantic import BaseModel


@cache
def field_meanings(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstring of every field, inherited ones included; empty for a field without one."""
    found: dict[str, str] = {}
    for item in reversed(model.__mro__):
        if issubclass(item, BaseModel) and item is not BaseModel:
            found |= dict(_own(item))
    return {name: found.get(name, "") for name in model.model_fields}


def _own(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    body: list[ast.stmt] = _module(model.__module__).body
    for name in model.__qualname__.split("."):
        body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == name)
    for node, below in zip_longest(body, body[1:]):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            constant = below.value if isinstance(below, ast.Expr) else None
            text = constant.value if isinstance(constant, ast.Constant) else ""
            yield node.target.id, inspect.cleandoc(text) if isinstance(text, str) else ""


@cache
def _module(name: str) -> ast.Module:
    return ast.parse(inspect.getsource(sys.modules[name]))


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the models that a field of this type holds directly."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_in(part)]


def nested_models(roots: Sequence[type[BaseModel]]) -> Iterator[type[BaseModel]]:
    """Yield every model inside the roots once, without the roots."""
    seen, pending = set(roots), list(roots)
    while pending:
        for field in pending.pop().model_fields.values():
            for model in models_in(field.annotation):
                if model not in seen:
                    seen.add(model)
                    pending.append(model)
                    yield model
