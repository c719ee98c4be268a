"""Evaluates `calculate_output` of a multi grader: arithmetic over the scores of its graders.

Python's parser builds the tree, and only the node types listed here are evaluated, so no code can run. As in the
API, `^` is power.
"""

import ast
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from assay.base.errors import ConfigError

_FUNCTIONS: dict[str, Callable[..., float]] = {
    "min": min, "max": max, "abs": abs, "floor": math.floor, "ceil": math.ceil,
    "exp": math.exp, "sqrt": math.sqrt, "log": math.log,
}  # fmt: skip
_OPERATORS: dict[type[ast.AST], Callable[[float, float], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.Pow: lambda a, b: math.pow(a, b),
}
MAX_CHARACTERS = 2000


class Formula:
    """A validated formula."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARACTERS:
            raise ConfigError(f"calculate_output has {len(text)} characters; at most {MAX_CHARACTERS} are read.")
        try:
            self._tree = ast.parse(text.replace("^", "**").strip(), mode="eval").body
            self.names = frozenset(_names(self._tree, text))
        except (SyntaxError, ValueError) as error:
            raise ConfigError(f"calculate_output '{text:.200}' is not a formula: {error}.") from error
        except (RecursionError, MemoryError) as error:
            raise ConfigError(f"calculate_output '{text:.60}…' is nested too deeply.") from error

    def value(self, scores: Mapping[str, float]) -> float:
        """Evaluate. Raises `ValueError` if the result is not finite, e.g. after a division by zero."""
        try:
            result = float(_value(self._tree, scores))
        except (ZeroDivisionError, OverflowError, ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"calculate_output has no value for {dict(scores)}: {error}") from error
        if not math.isfinite(result):
            raise ValueError(f"calculate_output is {result} for {dict(scores)}")
        return result


def _names(node: ast.AST, text: str) -> Iterator[str]:
    """Yield the names of scores. Raises `ConfigError` for any node that is not arithmetic."""
    match node:
        case ast.BinOp(left, operator, right) if type(operator) in _OPERATORS:
            yield from _names(left, text)
            yield from _names(right, text)
        case ast.UnaryOp(ast.USub() | ast.UAdd(), operand):
            yield from _names(operand, text)
        case ast.Call(ast.Name(function), arguments, []) if function in _FUNCTIONS and arguments:
            for argument in arguments:
                yield from _names(argument, text)
        case ast.Constant(int() | float() as value) if not isinstance(value, bool):
            return
        case ast.Name(name):
            yield name
        case _:
            raise ConfigError(
                f"calculate_output '{text}': '{ast.unparse(node)}' is not arithmetic. Use + - * / ^, numbers, "
                f"the graders' names, and {', '.join(_FUNCTIONS)}."
            )


def _value(node: ast.AST, scores: Mapping[str, float]) -> float:
    match node:
        case ast.BinOp(left, operator, right):
            return float(_OPERATORS[type(operator)](_value(left, scores), _value(right, scores)))
        case ast.UnaryOp(operator, operand):
            value = _value(operand, scores)
            return -value if isinstance(operator, ast.USub) else value
        case ast.Call(ast.Name(function), arguments):
            return float(_FUNCTIONS[function](*(_value(argument, scores) for argument in arguments)))
        case ast.Constant(int() | float() as value):
            return float(value)
        case ast.Name(name):
            return scores[name]
    raise AssertionError(f"unchecked node {ast.dump(node)}")
