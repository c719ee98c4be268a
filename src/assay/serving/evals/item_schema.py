"""What items look like: JSON Schema, draft 2020-12, read so that no item takes long.

Whoever makes an eval writes its schema, and a worker's thread goes through it for every row. So a `pattern` is
searched by an engine whose time is linear in the text (the one that pydantic has), which knows no look-around
and no back-references; references are followed so often for an item and no more; and what would bring in
another engine is refused: `patternProperties`, and another draft inside.
"""

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

MAX_REFERENCES = 10_000
_REFERENCES = ("$ref", "$dynamicRef")
_Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError]]


class ItemSchema:
    """A schema that items are held against."""

    def __init__(self, schema: dict[str, Any]) -> None:
        """`ConfigError` says why it is none, or not one that is served."""
        _check(schema)
        self._left = 0
        keywords: dict[str, Any] = {"pattern": _pattern}
        for name in _REFERENCES:
            keywords[name] = self._counting(Draft202012Validator.VALIDATORS[name])
        validator = extend(Draft202012Validator, keywords)
        # A node that names its draft would be read by that draft's own engine, and the root is a node, too. A
        # registry of nothing: a schema that points elsewhere is not followed there.
        unnamed = {name: each for name, each in schema.items() if name != "$schema"}
        self._validator = validator(unnamed, registry=Registry())

    def check(self, item: dict[str, Any]) -> None:
        """`DataError` where an item does not fit, and says where."""
        self._left = MAX_REFERENCES
        try:
            self._validator.validate(item)
        except ValidationError as error:
            where = ".".join(["item", *map(str, error.absolute_path)])
            raise DataError(f"{where} does not fit item_schema: {error.message[:200]}") from error
        except Unresolvable as error:
            raise DataError(f"item_schema points elsewhere, and nothing is fetched: {error}") from error
        except RecursionError as error:
            raise DataError("item_schema refers to itself without an end") from error

    def _counting(self, follow: _Keyword) -> _Keyword:
        def counted(validator: Any, where: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
            self._left -= 1
            if self._left < 0:
                raise DataError(f"item_schema refers more than {MAX_REFERENCES:,} times for one item")
            yield from follow(validator, where, instance, schema)

        return counted


def _check(schema: dict[str, Any]) -> None:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        where = ".".join(map(str, error.absolute_path))
        at = f" (at {where})" if where else ""
        raise ConfigError(f"It is no JSON Schema: {error.message[:200]}{at}.") from error
    if schema.get("type", "object") != "object":
        raise ConfigError(f"Items are objects; its type is {schema['type']!r:.40}.")
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
        raise ConfigError("'patternProperties' is not served: name the fields under 'properties'.")
    if "$schema" in node and not is_root:
        raise ConfigError("'$schema' stands inside it: all of a schema is of draft 2020-12.")
    if isinstance(pattern := node.get("pattern"), str):
        try:
            _searcher(pattern)
        except PatternError as error:
            why = str(error).splitlines()[-1].strip().removeprefix("SchemaError: ").removeprefix("error: ")
            raise ConfigError(
                f"pattern {pattern!r:.80} is not served: {why[:200]}. Patterns are searched in linear time, "
                "which takes no look-around and no back-reference."
            ) from error


@lru_cache(maxsize=16)  # each may take 10 MB
def _searcher(pattern: str) -> SchemaValidator:
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:  # noqa: ARG001
    if isinstance(instance, str) and not _searcher(pattern).isinstance_python(instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")
