"""Commits of the code, each in a folder of its own that is removed afterwards (`git worktree`).

They are checked out of a clone that shares the repository's objects, which is only read: a command that is
killed leaves nothing in it.
"""

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import NamedTuple, Self

import assay
from assay.base.errors import ConfigError

PACKAGE = Path("src/assay")
"""Where the code lies in its repository."""

NO_HOOKS = ("-c", "core.hooksPath=/dev/null")
"""A checkout that nobody works in needs none."""


class CodeCommit(NamedTuple):
    """One commit."""

    sha: str
    subject: str
    code: str
    """Git's name of the package as it is there; equal names are equal code. Empty where there is none."""

    def text(self) -> str:
        """For people."""
        return f"{self.sha[:10]} ({self.subject})"


class CodeRepository:
    """The git repository of the code: the one where the command is given, or else of the code that runs."""

    def __init__(self, top: Path) -> None:
        """`top`: its working tree."""
        self.top = top

    @classmethod
    def found(cls) -> Self:
        """`ConfigError` where neither is in one."""
        running = Path(assay.__file__).parent
        for folder in (Path.cwd(), running):
            try:
                top = Path(_git(folder, "rev-parse", "--show-toplevel"))
            except ConfigError:
                continue
            if (top / PACKAGE).is_dir():
                return cls(top)
        raise ConfigError(
            f"no git repository of assay's code: neither {Path.cwd()} nor {running}, where the code that runs "
            "lies, is in one. Give the command in a clone, or name two datasets or two recipes."
        )

    def commit(self, revision: str) -> CodeCommit | None:
        """What a revision names; None where it names no commit."""
        try:
            sha = _git(self.top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        except ConfigError:
            return None
        return self._described(sha)

    def between(self, good: CodeCommit, bad: CodeCommit) -> list[CodeCommit]:
        """The commits after `good` up to `bad`, by first parents, the oldest first. `ConfigError` where `good`
        is not on that line."""
        line = _git(self.top, "rev-list", "--first-parent", "--reverse", bad.sha).splitlines()
        if good.sha not in line:
            raise ConfigError(
                f"GOOD {good.text()} is no ancestor of BAD {bad.text()} by first parents. Name one that is: "
                f"'git log --first-parent {bad.sha[:10]}' lists them."
            )
        return [self._described(sha) for sha in line[line.index(good.sha) + 1 :]]

    def _described(self, sha: str) -> CodeCommit:
        try:
            code = _git(self.top, "rev-parse", "--verify", "--quiet", f"{sha}:{PACKAGE}")
        except ConfigError:
            code = ""
        return CodeCommit(sha, _git(self.top, "log", "-1", "--format=%s", sha), code)


class Checkouts:
    """Folders with commits, made when they are first asked for. A context: they are gone when it ends."""

    def __init__(self, repository: CodeRepository) -> None:
        self._repository = repository
        self._folder = TemporaryDirectory(prefix="assay-commits-", ignore_cleanup_errors=True)
        self._clone = Path(self._folder.name) / "clone.git"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def source_of(self, commit: CodeCommit) -> Path:
        """The folder that holds the package of a commit."""
        if not self._clone.exists():
            top = self._repository.top
            _git(top, "clone", "--quiet", "--bare", "--shared", str(top), str(self._clone))
        # Equal lengths of paths, so that nothing differs between two commits but their code.
        path = Path(self._folder.name) / commit.sha[:16]
        if not path.exists():
            _git(self._clone, "worktree", "add", "--detach", "--quiet", str(path), commit.sha)
        return path / PACKAGE.parent


def _git(folder: Path, *arguments: str) -> str:
    """What git answers. `ConfigError` where it refuses, or is not there."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *NO_HOOKS, *arguments], capture_output=True, text=True, check=True
        )
    except FileNotFoundError as error:
        raise ConfigError("git is not installed here, and commits are its. Install it.") from error
    except subprocess.CalledProcessError as error:
        raise ConfigError(f"git {' '.join(arguments[:2])}: {error.stderr.strip()}") from error
    return done.stdout.strip()
