"""Checkouts of commits of assay's code, in temporary folders (`git worktree`).

They come from a clone that shares the repository's objects and only reads it, so a command that is killed
leaves nothing in the repository.
"""

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import NamedTuple, Self

from assay.base.errors import ConfigError

PACKAGE = Path("src/assay")
"""Path of the package in its repository."""

NO_HOOKS = ("-c", "core.hooksPath=/dev/null")
"""Options that disable git hooks, which temporary checkouts do not need."""


class CodeCommit(NamedTuple):
    """A commit and the code of the package in it."""

    sha: str
    subject: str
    code: str
    """Git object name of the package; equal names mean equal code. Empty if the commit has no package."""

    def text(self) -> str:
        return f"{self.sha[:10]} ({self.subject})"


class CodeRepository:
    """The git repository of the code: that of the working directory, else that of the running code."""

    def __init__(self, top: Path) -> None:
        self.top = top

    @classmethod
    def found(cls) -> Self:
        """Find the repository. Raises `ConfigError` if there is none."""
        running = Path(__file__).parents[2]
        for folder in (Path.cwd(), running):
            try:
                top = Path(_git(folder, "rev-parse", "--show-toplevel"))
            except ConfigError:
                continue
            if (top / PACKAGE).is_dir():
                return cls(top)
        raise ConfigError(
            f"no git repository of assay's code: neither {Path.cwd()} nor {running}, the folder of the "
            "running code, is in one. Run the command in a clone, or name two datasets or two recipes."
        )

    def commit(self, revision: str) -> CodeCommit | None:
        """Return the commit of a revision; None if it names no commit."""
        try:
            sha = _git(self.top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        except ConfigError:
            return None
        return self._described(sha)

    def between(self, good: CodeCommit, bad: CodeCommit) -> list[CodeCommit]:
        """Return the commits after `good` up to `bad` along first parents, oldest first. Raises `ConfigError`
        if `good` is not an ancestor."""
        line = _git(self.top, "rev-list", "--first-parent", "--reverse", bad.sha).splitlines()
        if good.sha not in line:
            raise ConfigError(
                f"GOOD {good.text()} is not a first-parent ancestor of BAD {bad.text()}. Name one that is: "
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
    """A context manager of checkouts, which are created on first use and removed at the end."""

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
        if not self._clone.exists():
            top = self._repository.top
            _git(top, "clone", "--quiet", "--bare", "--shared", str(top), str(self._clone))
        # All paths have equal lengths, so that commits differ in nothing but their code.
        path = Path(self._folder.name) / commit.sha[:16]
        if not path.exists():
            _git(self._clone, "worktree", "add", "--detach", "--quiet", str(path), commit.sha)
        return path / PACKAGE.parent


def _git(folder: Path, *arguments: str) -> str:
    """Return the output of git. Raises `ConfigError` if it fails or is not installed."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *NO_HOOKS, *arguments], capture_output=True, text=True, check=True
        )
    except FileNotFoundError as error:
        raise ConfigError("git is not installed, and commits need it. Install git.") from error
    except subprocess.CalledProcessError as error:
        raise ConfigError(f"git {' '.join(arguments[:2])}: {error.stderr.strip()}") from error
    return done.stdout.strip()
