"""Which tests a change reaches: those that use a changed file, at any remove.

Settings and lists of what is installed reach all tests. A file that is no Python is used by those that name it
in a string; where none does, who reads it is unknown, and the tests of the nearest folder around it (below the
top one) are taken, and who names its folder. A file that does not parse may import anything, so it is taken for
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
"""Names of files on which every test stands: settings, and what is installed."""


class TestSelection(NamedTuple):
    """What a change of some files means for the tests of a tree."""

    graph: ImportGraph
    tests: frozenset[str]
    """Files of tests that it reaches."""
    selects_all: tuple[str, ...]
    """Changed files that reach every test."""
    unreached: tuple[str, ...]
    """Changed files that no test uses."""
    unknown: Mapping[str, str]
    """File -> what cannot be known of it."""


def select_tests(tree: SourceTree, changed: Collection[str]) -> TestSelection:
    """What a change that led to this tree reaches. Changed files that are not in it were deleted; a deleted
    test is neither reached nor missing."""
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
    return TestSelection(graph, reached, selects_all, tuple(unreached), unknown)


def _reaches_all(path: str) -> bool:
    return any(fnmatch.fnmatchcase(path.rpartition("/")[2], name) for name in AFFECTS_ALL)


def _file_users(files: Collection[str], graph: ImportGraph) -> tuple[dict[str, set[str]], dict[str, str]]:
    """Python file -> those of the files that it reads, as far as can be told; and of which that is a guess."""
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
    """The nearest folder around a file, below the top one, that holds tests at any depth, and these."""
    for folder in PurePosixPath(path).parents:
        nearest = [test for test in tests if test.startswith(f"{folder}/")]
        if nearest and folder.name:
            return str(folder), nearest
    return "", []
