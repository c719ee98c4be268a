"""The pydantic models inside a model's fields: in unions, lists and dictionaries."""

from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel


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
