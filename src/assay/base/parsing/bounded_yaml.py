"""YAML's safe loader within the bounds of `nesting`."""

from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError

from assay.base.parsing.nesting import MAX_ALIASED, MAX_BITS, MAX_DEPTH, TOO_DEEP


class BoundedLoader(yaml.SafeLoader):
    """Refuses by a `YAMLError` with its line what is too deep, too much, contains itself, or is no value."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._num_aliased = 0
        self._sizes: dict[int, int] = {}
        """Values of a finished node, by its id; all nodes live as long as the document."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """See `Composer`, which calls it for every node."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        mark: Any = event.start_mark
        self._depth += 1
        if self._depth > MAX_DEPTH + 1:
            raise ComposerError(None, None, TOO_DEEP, mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self._sizes:
                raise ComposerError(None, None, f"'*{event.anchor}' stands inside of itself", mark)
            self._num_aliased += self._sizes[id(node)]
            if self._num_aliased > MAX_ALIASED:
                raise ComposerError(None, None, f"aliases repeat more than {MAX_ALIASED:,} values", mark)
        else:
            inside = node.value if isinstance(node, yaml.CollectionNode) else []
            parts = (part for each in inside for part in (each if isinstance(each, tuple) else (each,)))
            self._sizes[id(node)] = 1 + sum(self._sizes[id(part)] for part in parts)
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """See `BaseConstructor`: what the text is no value of, its functions raise in all sorts of ways."""
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, int) and value.bit_length() > MAX_BITS:
                raise ValueError("a whole number of thousands of digits")
        except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
            why = f": {error}" if isinstance(error, ValueError) else ""
            problem = f"'{node.value!s:.40}' is no {node.tag.rpartition(':')[2]}{why}"
            raise ConstructorError(None, None, problem, node.start_mark) from error
        return value


def parse_yaml(text: str) -> Any:
    """What YAML says; a `YAMLError` where that is nothing, too deep or too much."""
    loader = BoundedLoader(text)
    node = loader.get_single_node()
    return None if node is None else loader.construct_document(node)
