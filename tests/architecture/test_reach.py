"""What neither a command nor the public API reaches is not in `src`, and no two modules import each other."""

import ast
import re

import assay
from assay.training.methods.registry import METHODS
from import_graph import cycles, imports, modules, reached_from

STARTS = ["assay.__main__", "assay.api.__main__"]
PUBLIC = [
    "assay.torch",
    *(f"assay.integrations.{tool}" for tool in ("accelerate", "lightning", "transformers")),
    *sorted(set(assay._MODULES.values())),
]
"""Modules that users import from."""

USED_BY_ANOTHER = {
    "lanes_of_reader": "says in one line which lanes a rank reads; loader and simulation are held to it",
}
"""Public names without a use in `src`, each with its reason."""


def test_no_two_modules_import_each_other_not_even_lazily() -> None:
    assert cycles() == []


def test_every_module_is_reached_by_a_command_or_the_public_api() -> None:
    reached = set[str]().union(*map(reached_from, [*STARTS, *PUBLIC]))
    # A method is imported by its folder's name.
    for entry in METHODS:
        for part in ("config", "method"):
            reached |= reached_from(f"assay.training.methods.{entry.folder}.{part}")
    unreached = [name for name in imports() if name not in reached]
    packages = {name.rpartition(".")[0] for name in modules()}
    assert [name for name in unreached if name not in packages] == []


def test_every_public_name_is_used() -> None:
    """A copy of a function does not count as used because other modules use the original."""
    everywhere, imported = set[str](), set[tuple[str, str]]()
    for tree in modules().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                everywhere.add(node.attr)
            elif isinstance(node, ast.ImportFrom):
                imported.update((node.module or "", alias.name) for alias in node.names)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 80:
                everywhere.update(re.findall(r"\w+", node.value))  # annotations, names looked up
    unused = []
    for name, tree in modules().items():
        own = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        unused += [
            node.name
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            and not node.name.startswith("_")
            and node.name not in everywhere | own
            and (name, node.name) not in imported
            and not _is_command(node)
            and name not in PUBLIC
        ]
    assert sorted(unused) == sorted(USED_BY_ANOTHER)


def _is_command(node: ast.FunctionDef | ast.ClassDef) -> bool:
    """Whether a decorator registers it with click."""
    decorators = [d.func if isinstance(d, ast.Call) else d for d in node.decorator_list]
    return any(isinstance(d, ast.Attribute) and d.attr in ("command", "group") for d in decorators)
