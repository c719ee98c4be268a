"""Every key of a configuration with its default and meaning, as Markdown: from the classes that check it."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from assay.base.model_fields import field_meanings, models_in


def key_reference(introduction: Sequence[str], model: type[BaseModel]) -> str:
    """Return a page: the introduction's lines, then a list of keys for `model` and each model inside it.

    A model that stands in several places has one list; the other places refer to it. `NAME` is a key that the
    file chooses.
    """
    section_of = dict[type[BaseModel], str]()
    for name, section in _sections("", model, section_of):
        section_of.setdefault(section, name)
    defaults = _defaults(section_of)
    is_typed = any(name.endswith("]") for name in section_of.values())
    of_types = " `key[x]` stands for `key` with `type: x`." if is_typed else ""
    lines = [*introduction, f"`key: value` shows a key's default.{of_types}"]
    for section, name in section_of.items():
        heading = f"{name} (default)" if section in defaults else name or "top level"
        lines += ["", f"## {heading}", ""]
        lines += [(section.__doc__ or "").strip().replace("\n    ", "\n")]
        meanings = field_meanings(section)
        keys = [
            _line(field.alias or key, field, meanings[key], _reference(name, key, field, section_of))
            for key, field in section.model_fields.items()
            if not (key == "type" and name.endswith(f"[{_kind(section)}]") and not _form(field.annotation))
        ]
        lines += ["", *keys] if keys else []
    return "\n".join(lines) + "\n"


def _sections(
    prefix: str, model: type[BaseModel], seen: Container[type[BaseModel]]
) -> Iterator[tuple[str, type[BaseModel]]]:
    is_known = model in seen
    yield prefix, model
    if is_known:
        return
    for key, field in model.model_fields.items():
        for name, nested in _nested(prefix, key, field):
            yield from _sections(name, nested, seen)


def _nested(prefix: str, key: str, field: FieldInfo) -> list[tuple[str, type[BaseModel]]]:
    """Return the models that a field holds, with the section names that they have if they are described here."""
    models = models_in(field.annotation)
    dotted = f"{prefix}.{key}".lstrip(".") + (".NAME" if get_origin(field.annotation) is dict else "")
    return [(f"{dotted}[{_kind(model)}]" if _kind(model) and len(models) > 1 else dotted, model) for model in models]


def _kind(model: type[BaseModel]) -> str:
    """Return the value of `type` that selects a model of a union; empty for a model without `type`."""
    field = model.model_fields.get("type")
    return get_args(field.annotation)[0] if field else ""


def _defaults(models: Iterable[type[BaseModel]]) -> set[type[Any]]:
    """Return the models that are used when a file leaves out the key of a union."""
    fields = (field for model in models for field in model.model_fields.values())
    optional = (field for field in fields if not field.is_required() and len(models_in(field.annotation)) > 1)
    return {type(field.get_default(call_default_factory=True)) for field in optional}


def _reference(prefix: str, key: str, field: FieldInfo, section_of: Mapping[type[BaseModel], str]) -> str:
    """Return the section that describes the keys of a field, without the `type` of a union; empty if it follows."""
    elsewhere = [section_of[model] for name, model in _nested(prefix, key, field) if section_of[model] != name]
    if not elsewhere:
        return ""
    return elsewhere[0].rpartition("[")[0] if elsewhere[0].endswith("]") else elsewhere[0]


def _line(key: str, field: FieldInfo, docstring: str, described_in: str) -> str:
    """Return one list item; `key: default` if the default is a scalar or a list."""
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    has_word = not field.is_required() and not isinstance(default, BaseModel)
    shown = f"- `{key}: {_as_yaml(default)}`" if has_word else f"- `{key}`"
    shown += " (required)" if field.is_required() else ""
    text = " ".join(docstring.split())
    texts = (text, _form(field.annotation, text), described_in and f"Keys: `{described_in}`.")
    meaning = " ".join(filter(None, texts))
    return f"{shown}: {meaning}" if meaning else shown


def _as_yaml(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_as_yaml(item) for item in value)}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value) or '""'


def _form(annotation: Any, text: str = "") -> str:
    """Return the permitted values of a literal type, unless `text` names all of them."""
    choices = [f"`{choice}`" for choice in get_args(annotation) if get_origin(annotation) is Literal]
    is_described = len(choices) < 2 or all(choice in text for choice in choices)
    return "" if is_described else f"One of {', '.join(choices)}."
