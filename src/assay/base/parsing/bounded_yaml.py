"""PyYAML's safe loader with the limits of `nesting`."""

from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from assay.base.parsing.nesting import MAX_ALIASED, MAX_BITS, MAX_DEPTH, TOO_DEEP


class BoundedLoader(yaml.SafeLoader):
    """Raises `YAMLError` with the line for values that are too deep, too many, recursive or invalid."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._num_aliased = 0
        self._sizes: dict[int, int] = {}
        """Number of values in each finished node, by its id(); nodes live as long as the document."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Count depth and aliased values; called by `Composer` for every node."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        mark: Any = event.start_mark
        self._depth += 1
        if self._depth > MAX_DEPTH + 1:
            raise ComposerError(None, None, TOO_DEEP, mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self._sizes:
                raise ComposerError(None, None, f"'*{event.anchor}' refers to a node that contains it", mark)
            self._num_aliased += self._sizes[id(node)]
            if self._num_aliased > MAX_ALIASED:
                raise ComposerError(None, None, f"aliases repeat more than {MAX_ALIASED:,} values", mark)
        else:
            inside = node.value if isinstance(node, yaml.CollectionNode) else []
            parts = (part for item in inside for part in (item if isinstance(item, tuple) else (item,)))
            self._sizes[id(node)] = 1 + sum(self._sizes[id(part)] for part in parts)
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Build a value; errors of any type become a `ConstructorError` with the line."""
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, int) and value.bit_length() > MAX_BITS:
                raise ValueError("the number has thousands of digits")
        except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
            why = f": {error}" if isinstance(error, ValueError) else ""
            problem = f"'{node.value!s:.40}' is not a valid {node.tag.rpartition(':')[2]}{why}"
            raise ConstructorError(None, None, problem, node.start_mark) from error
        return value


def parse_yaml(text: str) -> Any:
    """Parse YAML; raises `YAMLError` if it is invalid, too deep or too large."""
    loader = BoundedLoader(text)
    node = loader.get_single_node()
    return None if node is None else loader.construct_document(node)
