"""Who imports whom in `src`, lazy imports counted, those for type checkers alone not."""

import ast
from functools import cache
from pathlib import Path

SRC = Path(__file__).parents[1] / "src"


@cache
def syntax(path: Path) -> ast.Module:
    """The syntax tree of a file, parsed once for all tests that read it."""
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All of a module's syntax tree, its root first."""
    return [*ast.walk(syntax(path))]


@cache
def modules() -> dict[str, ast.Module]:
    """Dotted name -> syntax, packages included."""
    found = {}
    for path in sorted((SRC / "assay").rglob("*.py")):
        name = ".".join(path.relative_to(SRC).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = syntax(path)
    return found


@cache
def imports() -> dict[str, frozenset[str]]:
    """Dotted name -> the modules that it imports, at once, lazily, or by a name in a string."""
    return {name: frozenset(_imported(name, tree)) for name, tree in modules().items()}


def forget() -> None:
    """Drop all trees: millions of objects that each garbage collection of the session would scan."""
    for cached in (syntax, nodes, modules, imports):
        cached.cache_clear()


def reached_from(start: str) -> set[str]:
    """Every module that an import chain from `start` leads to."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += imports()[name]
    return seen


def cycles() -> list[list[str]]:
    """Modules that reach themselves, cycle by cycle (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in imports()[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            component = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(component) > 1:
                found.append(sorted(component))

    for name in imports():
        if name not in index:
            visit(name)
    return found


def _imported(name: str, tree: ast.Module) -> set[str]:
    found: set[str] = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return {text for text in found if text in modules() and text != name and not _is_package(text)}


def _is_package(name: str) -> bool:
    return (SRC / Path(*name.split("."))).is_dir()
