"""The small wrong programs that stand beside a right one: each differs from its module in one place.

Left alone, because no test should hang on them: annotations, docstrings, decorators, what an error says, and
assertions (they say what cannot happen, so only a second mistake would show that one is gone).
"""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

COMPARED = {"Lt": "LtE", "Gt": "GtE", "Eq": "NotEq", "Is": "IsNot", "In": "NotIn"}
COMPARED |= {after: before for before, after in COMPARED.items()}
COMPUTED = {
    "Add": "Sub", "Sub": "Add", "Mult": "Div", "Div": "Mult", "FloorDiv": "Mult", "Mod": "Mult", "Pow": "Mult",
    "BitAnd": "BitOr", "BitOr": "BitAnd", "BitXor": "BitAnd", "LShift": "RShift", "RShift": "LShift",
}  # fmt: skip
CALLED = {
    "min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list", "reversed": "list",
    "floor": "ceil", "ceil": "floor", "argmin": "argmax", "argmax": "argmin",
}  # fmt: skip
NO_PROGRAM = (ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr)
NO_PROGRAM_FIELDS = {"annotation", "returns", "decorator_list", "bases", "exc"}
COMPOUND = (ast.FunctionDef, ast.ClassDef, ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match)


@dataclass(frozen=True)
class Location:
    """A node of a module's tree, and what holds it."""

    holder: ast.AST
    field: str
    index: int | None
    node: ast.AST
    statement: ast.stmt
    function: str
    """Qualified name of the outermost function around it; empty for what runs as the module is made."""

    def put(self, node: ast.AST) -> None:
        """Let another node stand here."""
        if self.index is None:
            setattr(self.holder, self.field, node)
        else:
            getattr(self.holder, self.field)[self.index] = node


@dataclass(frozen=True)
class Mutant:
    """One change of one module."""

    path: Path
    tree: ast.Module
    location: Location
    change: ast.AST
    was: str
    now: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Names it wherever its lines go."""
        return (str(self.path), self.location.function, self.was, self.now)

    @property
    def lines(self) -> range:
        """Of the changed statement without its body."""
        statement = self.location.statement
        body = getattr(statement, "body", None) if isinstance(statement, COMPOUND) else None
        stop = body[0].lineno if body else (statement.end_lineno or statement.lineno) + 1
        return range(statement.lineno, max(stop, statement.lineno + 1))

    def code(self) -> CodeType:
        """The module with the change."""
        self.location.put(self.change)
        try:
            return compile(ast.fix_missing_locations(self.tree), str(self.path.resolve()), "exec")
        finally:
            self.location.put(self.location.node)


def mutants_of(path: Path) -> list[Mutant]:
    """All of a module, in the order of their places; changes that read alike are one."""
    tree = ast.parse(path.read_text())
    found: dict[tuple[object, ...], Mutant] = {}
    for location in _locations(tree, None, ""):
        for change in _changes(location.node):
            ast.copy_location(change, location.node)
            was = _shown(location.statement)
            location.put(change)
            now = _shown(change if location.node is location.statement else location.statement)
            location.put(location.node)
            if was != now:
                mutant = Mutant(path, tree, location, change, was, now)
                found.setdefault((mutant.key, mutant.lines), mutant)
    return list(found.values())


def _locations(holder: ast.AST, statement: ast.stmt | None, function: str) -> Iterator[Location]:
    for field, value in ast.iter_fields(holder):
        if field in NO_PROGRAM_FIELDS:
            continue
        inside, is_function = function, isinstance(holder, ast.FunctionDef)
        if isinstance(holder, ast.FunctionDef | ast.ClassDef) and field == "body":
            inside = _inside(function, holder)
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(node, ast.AST) or _is_no_program(node):
                continue
            around = node if isinstance(node, ast.stmt) else statement
            if around is not None:
                name = inside.rstrip(".") if is_function or not inside.endswith(".") else ""
                yield Location(holder, field, index, node, around, name)
            yield from _locations(node, around, inside)


def _inside(function: str, holder: ast.FunctionDef | ast.ClassDef) -> str:
    """The name grows by classes, which leave a dot at its end, up to the first function."""
    if function and not function.endswith("."):
        return function
    return function + holder.name + ("." if isinstance(holder, ast.ClassDef) else "")


def _is_no_program(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.keyword(arg="description"):
            return True
        case ast.AnnAssign(annotation=ast.Name(id="TypeAlias")):
            return True
        case ast.Assign(value=ast.Subscript(value=ast.Name(id="Annotated" | "Literal"))):
            return True
        case ast.Assign(value=ast.Call(func=ast.Name(id="TypeVar"))):
            return True
    return isinstance(node, NO_PROGRAM)


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Constant():
            yield from (ast.Constant(value) for value in _other_values(node.value))
        case ast.Compare():
            for index, op in enumerate(node.ops):
                ops = [*node.ops[:index], _swapped(op, COMPARED), *node.ops[index + 1 :]]
                yield _with(node, ops=ops)
        case ast.BinOp() | ast.AugAssign():
            if type(node.op).__name__ in COMPUTED:
                yield _with(node, op=_swapped(node.op, COMPUTED))
        case ast.BoolOp():
            yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.comprehension():
            for index, test in enumerate(node.ifs):
                yield _with(node, ifs=[*node.ifs[:index], _negated(test), *node.ifs[index + 1 :]])
        case ast.Slice():
            yield from (_with(node, **{side: None}) for side in ("lower", "upper"))
        case ast.Call():
            yield from _other_calls(node)
        case ast.If() | ast.While() | ast.IfExp():
            yield _with(node, test=_negated(node.test))
        case ast.Continue():
            yield ast.Break()
        case ast.Break():
            yield ast.Continue()
        case ast.Return() if node.value is not None:
            yield ast.Return(ast.Constant(None))
    is_store = isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name | ast.Tuple)
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if is_store or is_call or isinstance(node, ast.AugAssign | ast.Raise | ast.Delete):
        yield ast.Pass()


def _other_values(value: object) -> list[Any]:
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, value - 1]
        case float():
            return [value + 1.0]
        case str():
            return ["XX" + value]
    return []


def _other_calls(node: ast.Call) -> Iterator[ast.Call]:
    match node.func:
        case ast.Name(id=name) if name in CALLED:
            yield _with(node, func=ast.Name(CALLED[name], ast.Load()))
        case ast.Attribute(attr=name) if name in CALLED:
            yield _with(node, func=_with(node.func, attr=CALLED[name]))
    for index, keyword in enumerate(node.keywords):
        if keyword.arg is not None:
            yield _with(node, keywords=node.keywords[:index] + node.keywords[index + 1 :])


def _with(node: Any, **fields: object) -> Any:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def _swapped(op: ast.AST, table: dict[str, str]) -> Any:
    return getattr(ast, table[type(op).__name__])()


def _negated(test: ast.expr) -> ast.expr:
    return (
        test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else ast.UnaryOp(ast.Not(), test)
    )


def _shown(statement: ast.AST) -> str:
    """As source, without the body."""
    emptied = {name: [] for name in ("orelse", "finalbody", "handlers", "decorator_list") if hasattr(statement, name)}
    if isinstance(statement, COMPOUND) and not isinstance(statement, ast.Match):
        statement = _with(statement, body=[ast.Pass()], **emptied)
        return ast.unparse(ast.fix_missing_locations(statement)).removesuffix("pass").strip()
    return ast.unparse(ast.fix_missing_locations(statement))
