"""Every key of a configuration with its default and meaning, as Markdown: from the classes that check it."""

from collections.abc import Container, Iterator, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from assay.base.field_meanings import field_meanings
from assay.base.nested_models import models_in


def key_reference(introduction: Sequence[str], model: type[BaseModel]) -> str:
    """A page: the introduction's lines, then a table for `model` and for each model inside it.

    A model that stands in several places is described once, with what is inside; `NAME` is a key that the file
    chooses.
    """
    lines, seen = list(introduction), dict[type[BaseModel], str]()
    for name, each in _sections("", model, seen):
        if each in seen:
            lines += ["", f"## {name}", "", f"As {seen[each]}."]
            continue
        seen[each] = name
        lines += ["", f"## {name or 'top level'}", ""]
        lines += [(each.__doc__ or "").strip().replace("\n    ", "\n"), ""]
        lines += ["| key | default | meaning |", "|---|---|---|"]
        meanings = field_meanings(each)
        lines += [_line(field.alias or key, field, meanings[key]) for key, field in each.model_fields.items()]
    return "\n".join(lines) + "\n"


def _sections(
    prefix: str, model: type[BaseModel], seen: Container[type[BaseModel]]
) -> Iterator[tuple[str, type[BaseModel]]]:
    is_known = model in seen
    yield prefix, model
    if is_known:
        return
    for key, field in model.model_fields.items():
        models = models_in(field.annotation)
        for nested in models:
            dotted = f"{prefix}.{key}".lstrip(".")
            if get_origin(field.annotation) is dict:
                dotted += ".NAME"
            kind = nested.model_fields.get("type")
            suffix = f" (type: {get_args(kind.annotation)[0]})" if kind and len(models) > 1 else ""
            yield from _sections(dotted + suffix, nested, seen)


def _line(key: str, field: FieldInfo, docstring: str) -> str:
    if models_in(field.annotation):
        default = "required, see below" if field.is_required() else "see below"
    elif field.is_required():
        default = "required"
    else:
        value = field.get_default(call_default_factory=True)
        default = f"`{value}`".replace("None", "null").replace("()", "[]").replace("``", "none")
    meaning = " ".join(docstring.split()).replace("|", "\\|")
    return f"| `{key}` | {default} | {' '.join(filter(None, (meaning, _form(field.annotation))))} |"


def _form(annotation: Any) -> str:
    """The words that may stand there, or that a list of so many values is expected; else nothing."""
    choices = get_args(annotation) if get_origin(annotation) is Literal else ()
    if len(choices) > 1:
        return "One of " + ", ".join(f"`{each}`" for each in choices) + "."
    return ""
