"""Renders grader templates in the API's syntax: `{{ item.question }}`, `{{ sample.output_text }}`.

A tag holds a path of names and indices only: no filters, expressions or code.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from assay.base.errors import ConfigError

_STEP = re.compile(r"\.?([A-Za-z_][\w-]*)|\[(\d+)\]|\[['\"]([^'\"]*)['\"]\]")
MAX_RENDERED = 16 << 20
"""Maximum length in characters, because a template may repeat a long text many times."""
ROOTS = ("item", "sample")
SAMPLE_FIELDS = ("output_text", "output_json", "choices", "output_tools")
"""The fields of every sample."""


class UnknownVariableError(Exception):
    """Raised if a template reads a value that a sample lacks."""


def render(template: str, values: Mapping[str, Any]) -> str:
    """Render a template; strings are inserted as they are, other values as JSON.

    Raises `UnknownVariableError` for an unknown path, or if the text is longer than `MAX_RENDERED`.
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
    """Validate a path into an item, like `item.input`. Raises `ValueError`."""
    try:
        steps = [*_steps(path)]
    except ConfigError as error:
        raise ValueError(str(error)) from error
    if len(steps) < 2 or steps[0] != "item":
        raise ValueError(f"{path!r:.80} is not a field of an item: write item.FIELD")
    return path


def value_at(path: str, values: Mapping[str, Any]) -> Any:
    """Return the value at a path. Raises `UnknownVariableError` for an unknown path."""
    return _lookup(path, values)


def check_template(template: str) -> str:
    """Return the template. Raises `ConfigError` for an invalid tag."""
    for path in _paths(template):
        steps = list(_steps(path))
        if not steps or steps[0] not in ROOTS:
            raise ConfigError(f"'{{{{ {path} }}}}' is not a known variable. Write item.FIELD or sample.output_text.")
    return template


def _parts(template: str) -> Iterator[tuple[str, str | None]]:
    """Yield (text, path of the following tag), with None after the last text.

    Takes linear time for any input, which a regular expression would not.
    """
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
            raise ConfigError(f"'{{{{ {path} }}}}' is not a path. Write e.g. item.answers[0].text.")
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
    """Return the fields of `item` or `sample` that a template requires."""
    paths = (list(_steps(path)) for path in _paths(template))
    return {str(steps[1]) for steps in paths if steps[0] == root and len(steps) > 1}
