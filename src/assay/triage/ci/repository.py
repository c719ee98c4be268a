"""Reads a git repository without changing it: files of its working tree and its commits.

Neither hooks nor a file system monitor from its settings are executed. Paths are relative to its top folder,
with `/`.
"""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from assay.base.errors import ConfigError
from assay.triage.ci.python_source import PythonSource

_LINK_MODES = ("120000", "160000")
"""Symbolic links and submodules, whose content is elsewhere."""

SETTINGS = ("pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
"""Where pytest looks for its settings, in order."""

LONGEST_REV = 1_000
"""Maximal length of a revision."""


class SourceTree(NamedTuple):
    """All files at one moment."""

    paths: frozenset[str]
    python: Mapping[str, PythonSource]
    """Files that end in `.py`."""
    settings: Mapping[str, bytes]
    """pytest's settings files in the top folder."""


@dataclass
class Repository:
    """A repository, with a cache of parsed files, because commits share most of them."""

    top: Path
    _by_blob: dict[str, PythonSource] = field(default_factory=dict)

    def commit(self, rev: str) -> str | None:
        """Return the full hash of a commit, or None."""
        if not rev.isprintable() or not 0 < len(rev) <= LONGEST_REV:
            return None
        completed = _run_git(self.top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{rev}^{{commit}}")
        return None if completed.returncode else completed.stdout.decode().strip()

    def parent(self, commit: str) -> str | None:
        """Return the first parent, or None."""
        return self.commit(f"{commit}^1")

    def changed_since(self, commit: str) -> tuple[str, ...]:
        """Return the files of the working tree that differ from the commit, including untracked ones."""
        differing = _paths(_git(self.top, "diff", "--name-only", "--no-renames", "-z", commit, "--"))
        new = _paths(_git(self.top, "ls-files", "--others", "--exclude-standard", "-z"))
        return tuple(sorted({*differing, *new}))

    def changed_between(self, before: str, after: str) -> tuple[str, ...]:
        return tuple(
            sorted(_paths(_git(self.top, "diff-tree", "-r", "--name-only", "--no-renames", "-z", before, after)))
        )

    def working_tree(self) -> SourceTree:
        """Return the files of the working tree, without ignored ones."""
        listed = _paths(_git(self.top, "ls-files", "--cached", "--others", "--exclude-standard", "-z"))
        paths = frozenset(path for path in listed if _is_own_file(self.top / path))
        python = {path: PythonSource((self.top / path).read_bytes()) for path in paths if path.endswith(".py")}
        settings = {name: (self.top / name).read_bytes() for name in SETTINGS if name in paths}
        return SourceTree(paths, python, settings)

    def tree_of(self, commit: str) -> SourceTree:
        blobs: dict[str, str] = {}
        for line in _paths(_git(self.top, "ls-tree", "-r", "-z", commit)):
            about, _, path = line.partition("\t")
            mode, _, blob = about.split()
            if mode not in _LINK_MODES:
                blobs[path] = blob
        read = {path: blob for path, blob in blobs.items() if path.endswith(".py") or path in SETTINGS}
        self._read_blobs({*read.values()} - self._by_blob.keys())
        python = {path: self._by_blob[blob] for path, blob in read.items() if path.endswith(".py")}
        settings = {name: self._by_blob[read[name]].content for name in SETTINGS if name in read}
        return SourceTree(frozenset(blobs), python, settings)

    def _read_blobs(self, blobs: set[str]) -> None:
        request = "".join(f"{blob}\n" for blob in blobs).encode()
        output = _git(self.top, "cat-file", "--batch", stdin=request) if blobs else b""
        start = 0
        while start < len(output):
            head_end = output.index(b"\n", start)
            blob, *_, size = output[start:head_end].decode().split()
            if not size.isdecimal():  # `missing`: a partial clone
                raise ConfigError(f"{self.top}: the file {blob} is not here. Fetch it (git fetch --refetch).")
            end = head_end + 1 + int(size)
            self._by_blob[blob] = PythonSource(output[head_end + 1 : end])
            start = end + 1


def opened_repository(folder: Path) -> Repository:
    """Return the repository that contains a folder. Raises `ConfigError` if there is none."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder. Expected one of a git repository.")
    completed = _run_git(folder, "rev-parse", "--show-toplevel")
    if completed.returncode:
        raise ConfigError(
            f"{folder}: not in the working tree of a git repository. Name one with --repo. git says: "
            f"{_git_message(completed)}"
        )
    return Repository(Path(completed.stdout.decode(errors="surrogateescape").removesuffix("\n")))


def _git(folder: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    """Return a git command's output. Raises `ConfigError` if it fails."""
    completed = _run_git(folder, *arguments, stdin=stdin)
    if completed.returncode:
        raise ConfigError(f"{folder}: git {arguments[0]} says: {_git_message(completed)}")
    return completed.stdout


def _run_git(folder: Path, *arguments: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]
    try:
        return subprocess.run(command, cwd=folder, input=stdin, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise ConfigError("git is not on the PATH, and --changed asks it. Install it.") from error


def _git_message(completed: "subprocess.CompletedProcess[bytes]") -> str:
    return completed.stderr.decode(errors="replace").strip() or f"exit code {completed.returncode}"


def _paths(listed: bytes) -> list[str]:
    return [path.decode(errors="surrogateescape") for path in listed.split(b"\0") if path]


def _is_own_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()
