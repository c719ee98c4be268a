"""Static analysis of a Python grader's source: the fields of `sample` and `item` that it reads.

Fields that cannot be determined statically are found only when the grader runs.
"""

import ast
from collections.abc import Iterator
from typing import Literal


def subscripted_fields(source: str, argument: Literal["sample", "item"]) -> set[str]:
    """Return the constant keys with which `grade(sample, item)` subscripts one of its arguments.

    Leaves out keys that it tests (`'x' in item`) or reads inside `try`, and all keys if it reassigns the argument.
    """
    found = set[str]()
    for grade in ast.parse(source).body:
        if isinstance(grade, ast.FunctionDef) and grade.name == "grade":
            found |= _subscripted(grade, ["sample", "item"].index(argument))
    return found


def _subscripted(grade: ast.FunctionDef, position: int) -> set[str]:
    arguments = [*grade.args.posonlyargs, *grade.args.args]
    if len(arguments) <= position:
        return set()
    name = arguments[position].arg
    read, tested = set[str](), set[str]()
    for node in _not_tried(grade):
        match node:
            case ast.Name(id=of, ctx=ast.Store()) if of == name:
                return set()
            case ast.Subscript(ast.Name(id=of), ast.Constant(str() as field), ast.Load()) if of == name:
                read.add(field)
            case ast.Compare(ast.Constant(str() as field), [ast.In() | ast.NotIn()]):
                tested.add(field)
            case _:
                pass
    return read - tested


def _not_tried(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes below `node`, except those inside a `try` body."""
    nodes = [node]
    while nodes:
        node = nodes.pop()
        tried = set(map(id, node.body)) if isinstance(node, ast.Try) else set()
        for child in ast.iter_child_nodes(node):
            if id(child) not in tried:
                yield child
                nodes.append(child)
