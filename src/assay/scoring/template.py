"""`{{ item.question }}` and `{{ sample.output_text }}`: the templates of graders, as the API writes them.

A path is names and `[index]`es, nothing else: no filters, no expressions, nothing that runs.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from assay.base.errors import ConfigError

_STEP = re.compile(r"\.?([A-Za-z_][\w-]*)|\[(\d+)\]|\[['\"]([^'\"]*)['\"]\]")
MAX_RENDERED = 16 << 20
"""Characters: a template that names a long text a thousand times fills a machine's memory."""
ROOTS = ("item", "sample")
SAMPLE_FIELDS = ("output_text", "output_json", "choices", "output_tools")
"""What every sample has, and nothing else."""


class UnknownVariableError(Exception):
    """A template names something that this sample does not have."""


def render(template: str, values: Mapping[str, Any]) -> str:
    """The template with every tag's value in its place; strings as they are, other values as JSON.

    Raises `UnknownVariableError` where a path leads nowhere, or the text is longer than `MAX_RENDERED`.
    """
    texts: list[str] = []
    remaining = MAX_RENDERED
    for text, path in _parts(template):
        value = "" if path is None else _lookup(path, values)
        texts += (text, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        remaining -= len(texts[-2]) + len(texts[-1])
        if remaining < 0:
            raise UnknownVariableError(f"the rendered text has more than {MAX_RENDERED:,} characters")
    return "".join(texts)


def item_path(path: str) -> str:
    """A path into an item, `item.input`, itself; `ValueError` where it is none."""
    try:
        steps = [*_steps(path)]
    except ConfigError as error:
        raise ValueError(str(error)) from error
    if len(steps) < 2 or steps[0] != "item":
        raise ValueError(f"{path!r:.80} names no field of an item: write item.FIELD")
    return path


def value_at(path: str, values: Mapping[str, Any]) -> Any:
    """What a path leads to; `UnknownVariableError` where it leads nowhere."""
    return _lookup(path, values)


def check_template(template: str) -> str:
    """The template itself, or a `ConfigError` for a tag that can never mean anything."""
    for path in _paths(template):
        steps = list(_steps(path))
        if not steps or steps[0] not in ROOTS:
            raise ConfigError(f"'{{{{ {path} }}}}' names nothing. Write item.FIELD or sample.output_text.")
    return template


def _parts(template: str) -> Iterator[tuple[str, str | None]]:
    """Each piece of text with the path of the tag behind it, None behind the last. The time that takes is
    proportional to the length, whatever stands there; a regular expression's is not."""
    begin = 0
    while (opening := template.find("{{", begin)) >= 0 and (closing := template.find("}}", opening + 2)) >= 0:
        yield template[begin:opening], template[opening + 2 : closing].strip()
        begin = closing + 2
    yield template[begin:], None


def _paths(template: str) -> Iterator[str]:
    return (path for _, path in _parts(template) if path is not None)


def _steps(path: str) -> list[str | int]:
    steps: list[str | int] = []
    position = 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            raise ConfigError(f"'{{{{ {path} }}}}' is no path. Write e.g. item.answers[0].text.")
        name, index, quoted = match.groups()
        steps.append(int(index) if index is not None else name if name is not None else quoted)
        position = match.end()
    return steps


def _lookup(path: str, values: Mapping[str, Any]) -> Any:
    found: Any = values
    for step in _steps(path):
        try:
            found = found[step]
        except (KeyError, IndexError, TypeError) as error:
            raise UnknownVariableError(f"{{{{ {path} }}}}: no '{step}'") from error
    return found


def fields_read(template: str, root: str) -> set[str]:
    """The fields of `item` or `sample` that a template reads: those without which it cannot be rendered."""
    paths = (list(_steps(path)) for path in _paths(template))
    return {str(steps[1]) for steps in paths if steps[0] == root and len(steps) > 1}
