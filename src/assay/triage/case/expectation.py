"""Parses what a prediction expects of a command's output, and checks it.

    exit 1                                   the command's exit code
    operators.finding.operator=aten::sum     a path in its JSON, and the value there
    results.*.what!=null                     any element, any other value

An operator name with `::` matches any overload. A path inside null is null. A key that the output does not have is
a mistake in the prediction, which then counts neither for nor against.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from assay.base.errors import ConfigError
from assay.base.visible import written_out
from assay.records.case import Outcome

RESULT_EXIT_CODES = (0, 1, 3)
"""Exit codes of a command with a result; others mean wrong usage or an error."""
EXIT = re.compile(r"exit ([013])")
PATH_VALUE = re.compile(r"([^=!\s]+)(!?=)(.*)", re.DOTALL)
SHOWN_CHARACTERS = 300


class Expectation(NamedTuple):
    """An exit code, or a path with its expected value."""

    exit_code: int | None
    path: tuple[str, ...]
    is_not: bool
    value: str


class CommandOutput(NamedTuple):
    """The output of a command."""

    exit_code: int | None
    """None if it was not started, or timed out."""
    tree: Any
    """Its JSON; None if it printed none."""
    problem: str
    """Why there is no output; empty if there is."""


class PredictionResult(NamedTuple):
    """Whether a prediction held, and the observed value."""

    outcome: Outcome
    seen: str


class _NoSuchKeyError(Exception):
    """A path has a key that the output does not have."""


def parse_expectation(text: str) -> Expectation:
    """Parse an expectation. Raises `ConfigError` if it is invalid."""
    if found := EXIT.fullmatch(text.strip()):
        return Expectation(int(found[1]), (), False, "")
    if (matched := PATH_VALUE.fullmatch(text.strip())) is None:
        raise ConfigError(
            f"--expect '{written_out(text)[:200]}': expected 'exit 0', 1 or 3, or PATH=VALUE of the command's "
            "JSON, e.g. operators.finding.operator=aten::sum."
        )
    return Expectation(None, tuple(matched[1].split(".")), matched[2] == "!=", matched[3].strip())


def judge(expectation: Expectation, output: CommandOutput) -> PredictionResult:
    """Return whether a prediction held. Missing output counts neither for nor against it."""
    if output.problem:
        return PredictionResult("not_run", output.problem)
    if expectation.exit_code is not None:
        held = output.exit_code == expectation.exit_code
        return PredictionResult("held" if held else "failed", f"exit {output.exit_code}")
    try:
        values = list(_values(output.tree, expectation.path))
    except _NoSuchKeyError as error:
        return PredictionResult("not_run", str(error))
    held = any(_is(value, expectation.value) != expectation.is_not for value in values)
    seen = ", ".join(dict.fromkeys(map(_text, values))) or "nothing"
    return PredictionResult("held" if held else "failed", seen[:SHOWN_CHARACTERS])


def _values(tree: Any, path: Sequence[str]) -> Iterator[Any]:
    """Yield the value at a path, or any number of values with `*`."""
    if not path or tree is None:
        yield tree
    elif isinstance(tree, dict):
        if path[0] == "*":
            for value in tree.values():
                yield from _values(value, path[1:])
        else:
            key, rest = _key(tree, path)
            yield from _values(tree[key], rest)
    elif isinstance(tree, list):
        yield from _of_list(tree, path)
    else:
        raise _NoSuchKeyError(f"'{'.'.join(path)}' is asked of {_text(tree)}, which has no keys")


def _of_list(tree: list[Any], path: Sequence[str]) -> Iterator[Any]:
    if path[0] == "*":
        for value in tree:
            yield from _values(value, path[1:])
    elif path[0].isdecimal():
        index = int(path[0])
        yield from _values(tree[index] if index < len(tree) else None, path[1:])
    else:
        raise _NoSuchKeyError(f"'{path[0]}' is asked of a list: give an index, or * for any")


def _key(tree: dict[str, Any], path: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return a key, which may contain dots, and the rest of the path."""
    for length in range(1, len(path) + 1):
        if (key := ".".join(path[:length])) in tree:
            return key, path[length:]
    raise _NoSuchKeyError(f"the answer has no '{path[0]}'; there is {', '.join(tree)}"[:SHOWN_CHARACTERS])


def _is(value: Any, expected: str) -> bool:
    if isinstance(value, str):
        operator = expected.replace("::", ".")
        return value == expected or (operator != expected and f"{value}.".startswith(f"{operator}."))
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(expected) == value
        except ValueError:
            return False
    return _text(value) == expected


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
