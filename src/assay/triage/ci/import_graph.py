"""Builds the dependency graph of a repository's files from their text.

    test --> conftest.py of its folder and above, __init__.py of its packages
    file --> its imports, including their packages
    file --> files that its strings name: a script, a table

A file is a module under every name by which it may be imported: from the top folder, from folders named `src`, from
project folders (with a pyproject.toml, setup.py or setup.cfg), from pytest's `pythonpath`, and from the first
folder above it that is not a package. If two files share a name, both count: running an unneeded test is better
than missing one.
"""

import fnmatch
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from assay.triage.ci.pytest_settings import pytest_settings
from assay.triage.ci.python_source import HOLE, ImportedName
from assay.triage.ci.repository import SourceTree

PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg")
EVERYWHERE = {"__init__.py", "__main__.py", "conftest.py", "setup.py"}
"""File names that are too common to identify a file."""
MANY_NAMES = 50
"""From this many names on, comparing each file's words is faster than searching its text."""


class ImportGraph:
    """The dependency edges of one tree. `gone` are deleted files that others may still import."""

    def __init__(self, tree: SourceTree, gone: Iterable[str] = ()) -> None:
        self.tree = tree
        self.paths = tree.paths.union(gone)
        self.python = sorted(path for path in self.paths if path.endswith(".py"))
        settings = pytest_settings(tree.settings)
        self.tests = frozenset(path for path in tree.python if settings.is_test(path))
        self._is_test = settings.is_test
        self._modules = _modules_of(self.python, self.paths, settings.pythonpath)
        self.uses = {path: self._used_by(path) for path in self.python}
        for user, named in self.named_by_strings(self.python).items():
            self.uses[user] |= named - {user}

    def is_gone_test(self, path: str) -> bool:
        """Return whether it was a test file and is deleted."""
        return path not in self.tree.paths and path.endswith(".py") and self._is_test(path)

    def _used_by(self, path: str) -> set[str]:
        used = {*_packages_of(path, self.paths)}
        if path in self.tests:
            used.update(_conftests_of(path, self.paths))
        if path in self.tree.python:
            for imported in self.tree.python[path].imports:
                used.update(self._resolved(path, imported))
        return used - {path}

    def _resolved(self, importer: str, imported: ImportedName) -> Iterator[str]:
        """Yield the files that an import runs: the module, its packages, and imported submodules."""
        if imported.level:
            yield from self._resolved_relatively(importer, imported)
            return
        if HOLE in imported.module:
            yield from self._resolved_with_holes(imported.module)
            return
        parts = imported.module.split(".")
        if imported.is_text and not self._is_meant(parts, imported.names):
            return
        for end in range(1, len(parts) + 1):
            yield from self._modules.get(".".join(parts[:end]), ())
        for name in imported.names:
            yield from self._modules.get(f"{imported.module}.{name}", ())

    def _is_meant(self, parts: list[str], names: tuple[str, ...]) -> bool:
        """Return whether at least a package and a module are written out."""
        start = parts[:2] if len(parts) > 1 else [*parts, *names]
        return ".".join(start) in self._modules

    def _resolved_relatively(self, importer: str, imported: ImportedName) -> Iterator[str]:
        folder = PurePosixPath(importer).parent
        for _ in range(imported.level - 1):
            folder = folder.parent
        parts = [part for part in imported.module.split(".") if part]
        for end in range(len(parts) + 1):
            yield from self._files_of(folder.joinpath(*parts[:end]), is_package=end < len(parts))
        for name in imported.names:
            yield from self._files_of(folder.joinpath(*parts, name), is_package=False)

    def _files_of(self, path: PurePosixPath, *, is_package: bool) -> Iterator[str]:
        candidates = [path / "__init__.py"]
        if not is_package and path.name:
            candidates.append(path.with_name(f"{path.name}.py"))
        yield from (str(candidate) for candidate in candidates if str(candidate) in self.paths)

    def _resolved_with_holes(self, pattern: str) -> Iterator[str]:
        package = pattern.partition(HOLE)[0].rpartition(".")[0]
        yield from self._resolved("", ImportedName(0, package))
        if package:
            matches = re.compile(fnmatch.translate(pattern)).match
            for module, files in self._modules.items():
                if matches(module):
                    yield from files

    def named_by_strings(self, files: Iterable[str]) -> Mapping[str, set[str]]:
        """Return Python file -> files that its strings name, by their path or the end of it. A Python file is
        matched by name only if the name is unique."""
        targets: dict[str, set[str]] = defaultdict(set)
        for path in files:
            parts = path.split("/")
            for start in range(len(parts)):
                targets["/".join(parts[start:])].add(path)
        for word, meant in list(targets.items()):
            is_vague = word in EVERYWHERE or ("/" not in word and len(meant) > 1)
            if word.endswith(".py") and is_vague:
                del targets[word]
        names = {word.rpartition("/")[2].encode(errors="surrogateescape") for word in targets}
        if all(name.endswith(b".py") for name in names):
            names = {b".py"}
        found = {}
        for user, source in self.tree.python.items():
            can_name = len(names) > MANY_NAMES or any(name in source.content for name in names)
            if can_name and (words := source.words & targets.keys()):
                found[user] = {path for word in words for path in targets[word]}
        return found

    def users_of(self, files: Iterable[str], extra: Mapping[str, set[str]] | None = None) -> set[str]:
        """Return the files and all their direct and indirect users. `extra` are further edges."""
        users: dict[str, set[str]] = defaultdict(set)
        for edges in (self.uses, extra or {}):
            for user, used in edges.items():
                for path in used:
                    users[path].add(user)
        return _closure(files, users)

    def used_from(self, files: Iterable[str], extra: Mapping[str, set[str]] | None = None) -> set[str]:
        """Return the files and everything that they use directly or indirectly."""
        further = extra or {}
        together = {path: used | further.get(path, set()) for path, used in self.uses.items()}
        return _closure(files, together)


def _closure(start: Iterable[str], edges: Mapping[str, set[str]]) -> set[str]:
    seen = set(start)
    waiting = [*seen]
    while waiting:
        new = edges.get(waiting.pop(), set()) - seen
        seen |= new
        waiting += new
    return seen


def _modules_of(python: Iterable[str], paths: frozenset[str], pythonpath: Collection[str]) -> dict[str, list[str]]:
    roots = {*pythonpath} | {path.rpartition("/")[0] for path in paths if path.rpartition("/")[2] in PROJECT_FILES}
    modules: dict[str, list[str]] = defaultdict(list)
    for path in python:
        folders = path.split("/")[:-1]
        is_root = [
            not length or folders[length - 1] == "src" or "/".join(folders[:length]) in roots
            for length in range(len(folders) + 1)
        ]
        is_root[len(folders) - len(_packages_of(path, paths))] = True
        for length in {length for length, is_one in enumerate(is_root) if is_one}:
            name = ".".join(path.removesuffix(".py").split("/")[length:]).removesuffix(".__init__")
            modules[name].append(path)
    return modules


def _packages_of(path: str, paths: frozenset[str]) -> list[str]:
    found = []
    for folder in PurePosixPath(path).parents:
        init = str(folder / "__init__.py")
        if init not in paths:
            break
        found.append(init)
    return found


def _conftests_of(path: str, paths: frozenset[str]) -> list[str]:
    conftests = (str(folder / "conftest.py") for folder in PurePosixPath(path).parents)
    return [conftest for conftest in conftests if conftest in paths]
