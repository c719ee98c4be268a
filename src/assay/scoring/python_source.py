"""What a python grader's source takes out of its arguments by name, as far as reading it shows.

Knows nothing of running it (`python_process`). What cannot be told by reading is left to the run.
"""

import ast
from collections.abc import Iterator
from typing import Literal


def subscripted_fields(source: str, argument: Literal["sample", "item"]) -> set[str]:
    """Constants by which `grade(sample, item)` subscripts one of the two, whatever it calls them.

    Not those that it asks about (`'x' in item`) or tries, nor any where it gives the name another value.
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
    """The nodes below it whose failure nobody catches, however deep."""
    nodes = [node]
    while nodes:
        node = nodes.pop()
        tried = set(map(id, node.body)) if isinstance(node, ast.Try) else set()
        for child in ast.iter_child_nodes(node):
            if id(child) not in tried:
                yield child
                nodes.append(child)
