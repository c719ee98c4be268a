"""Finds what a Python file imports and names, by parsing it without executing it.

Imports in functions count; imports under `if TYPE_CHECKING` do not. A dotted name in a string counts as an
import (patches, plug-ins, entry points). So do the argument of `import_module` and what follows `-m`,
including the constant part of f-strings. Names built otherwise are not found.
"""

import ast
import itertools
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from assay.base.visible import written_out

IMPORTING_CALLS = {"import_module", "__import__", "importorskip", "run_module"}
HOLE = "*"
"""Placeholder for the variable part of an f-string."""
LONGEST_STRING = 1_000
"""Longer strings are text or data, and are ignored."""

_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_MAY_NAME_MODULES = re.compile(
    rb"import_module|__import__|importorskip|run_module|pytest_plugins|__all__|-m\b"
    rb"|[\"'][A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+[\"':]"
)
"""Most files have none of these; then their expressions are skipped."""


class ImportedName(NamedTuple):
    """`from ..a.b import c, d` has level 2, module `a.b`, names `c` and `d`; `import a.b` has no names."""

    level: int
    module: str
    names: tuple[str, ...] = ()
    is_text: bool = False
    """Whether it comes from a string, which may mean something else: `setup.py` is not the module `py` of
    `setup`."""


@dataclass(frozen=True)
class PythonSource:
    """One file, parsed once and only as far as needed."""

    content: bytes

    @cached_property
    def problem(self) -> str:
        """Return why it cannot be parsed, or an empty text."""
        return self._parsed[1]

    @cached_property
    def imports(self) -> frozenset[ImportedName]:
        """Return all imports; empty if it cannot be parsed."""
        return self._parsed[0] | self._seen[0] if _MAY_NAME_MODULES.search(self.content) else self._parsed[0]

    @property
    def words(self) -> frozenset[str]:
        """Return the words of its strings without docstrings, as ends of paths without leading `./`, `../`
        and `/`."""
        return self._seen[1]

    @cached_property
    def _parsed(self) -> tuple[frozenset[ImportedName], str]:
        tree, problem = _tree_of(self.content)
        return frozenset(_import_statements(tree.body)), problem

    @cached_property
    def _seen(self) -> tuple[frozenset[ImportedName], frozenset[str]]:
        imports: set[ImportedName] = set()
        words: set[str] = set()
        for node in _expressions(_tree_of(self.content)[0]):
            if isinstance(node, ast.Constant):
                words_of_text = str(node.value).split() if len(str(node.value)) <= LONGEST_STRING else []
                words.update(_end_of_path(word) for word in words_of_text)
                imports.update(_dotted_names(words_of_text))
                imports.update(_behind_m(words_of_text))
            elif isinstance(node, ast.Call):
                imports.update(_called_imports(node))
                imports.update(_behind_m(_texts(node.args)))
            elif isinstance(node, ast.List | ast.Tuple):
                imports.update(_behind_m(_texts(node.elts)))
            elif isinstance(node, ast.Assign):
                imports.update(_assigned_imports(node))
        return frozenset(imports), frozenset(words - {""})


def _tree_of(content: bytes) -> tuple[ast.Module, str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes and the like, which are the file's own business
            return ast.parse(content), ""
    except SyntaxError as error:
        line = f"line {error.lineno}: " if error.lineno else ""
        return ast.Module([], []), f"{line}{written_out(str(error.msg))}"
    except (ValueError, RecursionError, MemoryError) as error:
        return ast.Module([], []), written_out(str(error)) or "nested too deeply"


def _import_statements(body: Sequence[ast.stmt]) -> Iterator[ImportedName]:
    waiting: list[ast.AST] = [*body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (ImportedName(0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield ImportedName(node.level, node.module or "", tuple(alias.name for alias in node.names))
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            waiting += node.orelse
        elif isinstance(node, ast.If) and _is_not_type_checking(node.test):
            waiting += node.body
        else:
            for field in ("body", "orelse", "finalbody", "handlers", "cases"):
                waiting += getattr(node, field, ())


def _is_type_checking(test: ast.expr) -> bool:
    return getattr(test, "id", getattr(test, "attr", "")) == "TYPE_CHECKING"


def _is_not_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and _is_type_checking(test.operand)


def _expressions(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield strings that are not statements, calls, lists, tuples and assignments."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                yield node
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.Call | ast.List | ast.Tuple | ast.Assign):
            yield node
        waiting += ast.iter_child_nodes(node)


def _end_of_path(word: str) -> str:
    """Convert `../data/table.csv::row` to `data/table.csv`."""
    return re.sub(r"^(?:\.{0,2}/)+", "", word.strip("'\"`,;()[]").partition("::")[0])


def _dotted_names(words: Sequence[str]) -> Iterator[ImportedName]:
    for word in words:
        name = word.partition(":")[0]
        if _DOTTED.fullmatch(name):
            module, _, last = name.rpartition(".")
            yield ImportedName(0, module, (last,), is_text=True)


def _behind_m(words: Sequence[str]) -> Iterator[ImportedName]:
    """Yield what `python -m package` runs: the package's `__main__`."""
    for before, word in itertools.pairwise(words):
        if before == "-m":
            yield ImportedName(0, word, ("__main__",))


def _texts(nodes: Sequence[ast.expr]) -> list[str]:
    return [str(node.value) if isinstance(node, ast.Constant) else "" for node in nodes]


def _called_imports(call: ast.Call) -> Iterator[ImportedName]:
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    if name not in IMPORTING_CALLS or not call.args:
        return
    text = _text_with_holes(call.args[0])
    module = text.lstrip(".")
    # A name that is all hole says nothing.
    if module and not module.startswith(HOLE):
        yield ImportedName(len(text) - len(module), module)


def _text_with_holes(node: ast.expr) -> str:
    """Return a string; in f-strings, `*` stands for variable parts and `.` for the own package."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if not isinstance(node, ast.JoinedStr):
        return ""
    parts = [
        str(part.value) if isinstance(part, ast.Constant)
        else "" if _is_own_package(part) and index == 0
        else HOLE
        for index, part in enumerate(node.values)
    ]  # fmt: skip
    return "".join(parts)


def _is_own_package(node: ast.expr) -> bool:
    return isinstance(node, ast.FormattedValue) and getattr(node.value, "id", "") in (
        "__package__",
        "__name__",
    )


def _assigned_imports(node: ast.Assign) -> Iterator[ImportedName]:
    """Yield modules in `pytest_plugins`, and what a package's `__all__` exports."""
    targets = {getattr(target, "id", "") for target in node.targets}
    texts = [
        str(child.value)
        for child in ast.walk(node.value)
        if isinstance(child, ast.Constant) and isinstance(child.value, str)
    ]
    if "pytest_plugins" in targets:
        yield from (ImportedName(0, text) for text in texts)
    if "__all__" in targets:
        yield ImportedName(1, "", tuple(texts))
