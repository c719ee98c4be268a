"""Validates eval items against a JSON Schema (draft 2020-12) in bounded time.

Clients write the schema and a worker thread applies it to each row. `pattern` therefore uses a linear-time regex engine
(pydantic's), without look-around and back-references; `uniqueItems` compares digests; the number of checks and of
followed references per item is limited; and `patternProperties` and other drafts are rejected because they would use
Python's regex engine.
"""

import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator, SchemaError, ValidationError
from jsonschema.validators import extend
from pydantic_core import SchemaError as PatternError
from pydantic_core import SchemaValidator, core_schema
from referencing import Registry
from referencing.exceptions import Unresolvable

from assay.base.errors import ConfigError, DataError

MAX_CHECKS = 1_000_000
"""Keyword values checked per item; a reference counts as 100."""
_REFERENCES = ("$ref", "$dynamicRef")
_Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError]]


class ItemSchema:
    """A validated JSON Schema."""

    def __init__(self, schema: dict[str, Any]) -> None:
        """Raises `ConfigError` if the schema is invalid or unsupported."""
        _check(schema)
        self._left = 0
        known: dict[str, Any] = {**Draft202012Validator.VALIDATORS, "pattern": _pattern, "uniqueItems": _unique}
        keywords = {
            name: self._counting(value, cost=100 if name in _REFERENCES else 1) for name, value in known.items()
        }
        validator = extend(Draft202012Validator, keywords)
        # jsonschema validates a node with `$schema` by that draft's own validator, even the root. The empty
        # registry stops external references.
        unnamed = {name: value for name, value in schema.items() if name != "$schema"}
        self._validator = validator(unnamed, registry=Registry())

    def check(self, item: dict[str, Any]) -> None:
        """Raise `DataError` with the location if an item is invalid."""
        self._left = MAX_CHECKS
        try:
            self._validator.validate(item)
        except ValidationError as error:
            where = ".".join(["item", *map(str, error.absolute_path)])
            raise DataError(f"{where} does not fit item_schema: {error.message[:200]}") from error
        except Unresolvable as error:
            raise DataError(f"item_schema has an external reference, which is not fetched: {error}") from error
        except RecursionError as error:
            raise DataError("item_schema has an endless reference cycle") from error
        except (ArithmeticError, ValueError) as error:
            raise DataError(f"the item cannot be validated against item_schema: {error}") from error

    def _counting(self, apply: _Keyword, *, cost: int) -> _Keyword:
        def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
            self._left -= cost * max(1, len(value) if isinstance(value, list) else 1)
            if self._left < 0:
                raise DataError(f"item_schema makes more than {MAX_CHECKS:,} checks for one item")
            yield from apply(validator, value, instance, schema) or ()

        return counted


def _check(schema: dict[str, Any]) -> None:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        where = ".".join(map(str, error.absolute_path))
        at = f" (at {where})" if where else ""
        raise ConfigError(f"Invalid JSON Schema: {error.message[:200]}{at}.") from error
    except RecursionError as error:
        raise ConfigError("The schema is nested too deeply. Move parts of it to '$defs'.") from error
    if schema.get("type", "object") != "object":
        raise ConfigError(f"The schema's type must be 'object', not {schema['type']!r:.40}.")
    nodes: list[Any] = [schema]
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict):
            _check_node(node, is_root=node is schema)
            nodes += node.values()
        elif isinstance(node, list):
            nodes += node


def _check_node(node: dict[str, Any], *, is_root: bool) -> None:
    if "patternProperties" in node:
        raise ConfigError("'patternProperties' is not supported. List the fields under 'properties'.")
    if "$schema" in node and not is_root:
        raise ConfigError("'$schema' is only allowed at the top level; the whole schema uses draft 2020-12.")
    if isinstance(pattern := node.get("pattern"), str):
        try:
            _searcher(pattern)
        except PatternError as error:
            why = str(error).splitlines()[-1].strip().removeprefix("SchemaError: ").removeprefix("error: ")
            raise ConfigError(
                f"pattern {pattern!r:.80} is not supported: {why[:200]}. Patterns use a linear-time engine "
                "without look-around and back-references."
            ) from error


@lru_cache(maxsize=16)  # each may take 10 MB
def _searcher(pattern: str) -> SchemaValidator:
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))


def _unique(validator: Any, must_be_unique: bool, instance: Any, schema: Any) -> Iterator[ValidationError]:  # noqa: ARG001
    if must_be_unique and isinstance(instance, list):
        texts = [json.dumps(_numbers_alike(element), sort_keys=True) for element in instance]
        if len(set(texts)) < len(texts):
            yield ValidationError("it has duplicate elements")


def _numbers_alike(value: Any) -> Any:
    """Normalize 1.0 to 1, because JSON Schema treats them as equal."""
    return json.loads(json.dumps(value), parse_float=lambda text: int(n) if (n := float(text)) % 1 == 0 else n)


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:  # noqa: ARG001
    if isinstance(instance, str) and not _searcher(pattern).isinstance_python(instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")
