"""Selects the tests that a change affects: those that use a changed file directly or indirectly.

Settings and dependency lists affect all tests. A file that is not Python is used by files that name it in a
string. If none does, its users are unknown: the tests of the nearest folder around it (below the top one) are
selected, and files that name its folder. A file that does not parse may import anything, so it counts as
changed.
"""

import fnmatch
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

from assay.base.units import number_of
from assay.triage.ci.import_graph import ImportGraph
from assay.triage.ci.repository import SETTINGS, SourceTree

AFFECTS_ALL = (
    *SETTINGS,
    *("setup.py", "*.lock", "*.lockb", "*-lock.*", "pylock*.toml", "go.sum", "Pipfile", ".python-version"),
    *("requirements*.txt", "requirements*.in", "constraints*.txt", "environment.yml", "environment.yaml"),
)
"""Files that affect every test: settings and dependencies."""


class SelectedTests(NamedTuple):
    """The tests that a change affects."""

    graph: ImportGraph
    tests: frozenset[str]
    """Affected test files."""
    selects_all: tuple[str, ...]
    """Changed files that affect every test."""
    unreached: tuple[str, ...]
    """Changed files that no test uses."""
    unknown: Mapping[str, str]
    """File -> what is unknown about it."""


def select_tests(tree: SourceTree, changed: Collection[str]) -> SelectedTests:
    """Select the tests for a change that led to this tree. Changed files that are not in the tree were
    deleted; a deleted test is neither selected nor missed."""
    graph = ImportGraph(tree, gone=set(changed) - tree.paths)
    selects_all = tuple(path for path in changed if _reaches_all(path))
    other = [path for path in changed if not path.endswith(".py") and path not in selects_all]
    file_users, unknown = _file_users(other, graph)
    unknown |= _unreadable(tree)
    touched = [*changed, *_unreadable(tree)] if changed else []
    reached = graph.tests if selects_all else graph.tests & graph.users_of(touched, file_users)
    used = graph.used_from(graph.tests, file_users)
    unreached = [
        path
        for path in changed
        if path not in used and path not in selects_all and path not in unknown and not graph.is_gone_test(path)
    ]
    return SelectedTests(graph, reached, selects_all, tuple(unreached), unknown)


def _reaches_all(path: str) -> bool:
    return any(fnmatch.fnmatchcase(path.rpartition("/")[2], name) for name in AFFECTS_ALL)


def _file_users(files: Collection[str], graph: ImportGraph) -> tuple[dict[str, set[str]], dict[str, str]]:
    """Return Python file -> the files that it reads, and for which files this is a guess."""
    file_users: dict[str, set[str]] = defaultdict(set)
    for reader, named in graph.named_by_strings(files).items():
        file_users[reader] |= named
    unnamed = sorted(set(files) - {path for named in file_users.values() for path in named})
    naming_folder = graph.named_by_strings({_folder(path) for path in unnamed} - {""})
    unknown = {}
    for path in unnamed:
        folder, nearest = _nearest_tests(path, graph.tests)
        naming = {reader for reader, folders in naming_folder.items() if _folder(path) in folders}
        for reader in naming.union(nearest):
            file_users[reader].add(path)
        readers_text = [f"the {number_of(len(nearest), 'test file')} in {folder}"] if nearest else []
        readers_text += [f"{number_of(len(naming), 'file')} with the name of its folder"] if naming else []
        unknown[path] = (
            "no string names it, so which tests read it is not known; taken for readers: "
            f"{' and '.join(readers_text) or 'none'}"
        )
    return file_users, unknown


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _unreadable(tree: SourceTree) -> dict[str, str]:
    return {
        path: f"it does not parse ({source.problem}): what it imports is not known, so it is taken for changed"
        for path, source in sorted(tree.python.items())
        if source.problem
    }


def _nearest_tests(path: str, tests: Collection[str]) -> tuple[str, list[str]]:
    """Return the nearest folder around a file, below the top one, that contains tests, and these tests."""
    for folder in PurePosixPath(path).parents:
        nearest = [test for test in tests if test.startswith(f"{folder}/")]
        if nearest and folder.name:
            return str(folder), nearest
    return "", []
