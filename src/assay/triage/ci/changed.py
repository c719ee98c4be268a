"""Selects the tests that a change affects, by the imports of a repository's Python files.

    modules of packages (folders with an __init__.py)  -> what they import, by grimp
    other files: tests, helpers, scripts               -> their import statements
    test                                               -> conftest.py of its folder and above

Only import statements count. Names that are built at run time, and what another process reads, are not followed, and
who reads a file that is not Python is unknown. No code of the repository runs, nor hooks or a file system monitor
from its git settings.
"""

import ast
import fnmatch
import json
import subprocess
import sys
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath

from assay.base.errors import ConfigError
from assay.base.visible import written_out
from assay.records.ci_report import CiChanged

TESTS = ("test_*.py", "*_test.py")
AFFECTS_ALL = (
    *("pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg", "setup.py", ".python-version"),
    *("*.lock", "*.lockb", "*-lock.*", "pylock*.toml", "go.sum", "Pipfile", "environment.yml", "environment.yaml"),
    *("requirements*.txt", "requirements*.in", "constraints*.txt"),
)
"""Files that affect every test: settings and dependencies."""
LONGEST_REV = 1_000
GRIMP = """
import json, sys, grimp
roots, names = json.load(sys.stdin)
sys.path[:0] = roots
graph = grimp.build_graph(*names, exclude_type_checking_imports=True, cache_dir=None)
json.dump({name: sorted(graph.find_modules_directly_imported_by(name)) for name in graph.modules}, sys.stdout)
"""
"""Runs in a process of its own, because a package of the repository may have the name of a loaded one."""


def changed_since(rev: str, folder: Path) -> CiChanged:
    """Compare a revision with the working tree of a repository.

    Raises `ConfigError` if the folder is not in a repository, or the revision does not exist.
    """
    top, commit = _opened(folder, rev)
    listed = _paths(top, "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    files = (path for path in listed if path.endswith(".py") and not (top / path).is_symlink())
    python = {path for path in files if (top / path).is_file()}
    differing = _paths(top, "diff", "--name-only", "--no-renames", "-z", commit, "--")
    changed = sorted({*differing, *_paths(top, "ls-files", "--others", "--exclude-standard", "-z")})
    tests = {path for path in python if _matches(path, TESTS)}
    selects_all = [path for path in changed if _matches(path, AFFECTS_ALL)]
    uses = _uses(top, python, tests)
    known = python.intersection(changed)
    return CiChanged(
        since=commit, files=_shown(changed),
        tests=_shown(sorted(tests if selects_all else tests & _closure(known, _inverted(uses)))),
        test_files=len(tests), selects_all=_shown(selects_all),
        unreached_files=_shown(sorted(known - _closure(tests, uses) - {*selects_all})),
        unknown=_shown([path for path in changed if path not in python and path not in selects_all]),
    )  # fmt: skip


def _uses(top: Path, python: Collection[str], tests: Collection[str]) -> dict[str, set[str]]:
    """Return file -> the files whose code runs when it is imported."""
    packages = _packages(python)
    modules: dict[str, set[str]] = defaultdict(set)
    names: dict[str, str] = {}
    for path in python:
        parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
        root = next((root for root in packages if path.startswith(f"{root}/")), None)
        starts = range(len(parts)) if root is None else [root.count("/")]
        for start in starts:
            modules[".".join(parts[start:])].add(path)
        if root is not None:
            names[".".join(parts[starts[0] :])] = path
    uses: dict[str, set[str]] = defaultdict(set)
    for name, imported in _imports_of_packages(top, packages).items():
        if name in names:
            uses[names[name]] |= {path for module in [*imported, name] for path in _run_by(module, modules)}
    for path in set(python) - {*names.values()}:
        uses[path] |= {used for module in _imported(top / path) for used in _run_by(module, modules)}
    for path in tests:
        conftests = {str(parent / "conftest.py") for parent in PurePosixPath(path).parents}
        uses[path] |= conftests.intersection(python)
    return uses


def _packages(python: Collection[str]) -> list[str]:
    """Return the top folders of packages, one for each name."""
    folders = {str(PurePosixPath(path).parent) for path in python if path.endswith("/__init__.py")}
    found: dict[str, str] = {}
    for folder in sorted(folders):
        if str(PurePosixPath(folder).parent) not in folders:
            found.setdefault(PurePosixPath(folder).name, folder)
    return list(found.values())


def _imports_of_packages(top: Path, packages: Collection[str]) -> dict[str, list[str]]:
    if not packages:
        return {}
    roots = [str((top / package).parent) for package in packages]
    request = json.dumps([roots, [PurePosixPath(package).name for package in packages]])
    done = subprocess.run([sys.executable, "-c", GRIMP], input=request, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        hint = " Install it: pip install 'assay[ci]'." if "No module named 'grimp'" in last[0] else ""
        raise ConfigError(
            f"--changed: the imports of {top} cannot be read by grimp: {written_out(last[0])[:300]}.{hint}"
        )
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def _imported(file: Path) -> Iterator[str]:
    """Yield the modules that a file's import statements may load, but for `if TYPE_CHECKING`; none if it does not
    parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes and the like, which are the file's own business
            waiting: list[ast.AST] = [ast.parse(file.read_bytes())]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and getattr(node.test, "id", getattr(node.test, "attr", "")) == "TYPE_CHECKING":
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


def _run_by(module: str, modules: Mapping[str, set[str]]) -> set[str]:
    """Return the files of a module and of the packages around it."""
    parts = module.split(".")
    return {path for end in range(1, len(parts) + 1) for path in modules.get(".".join(parts[:end]), ())}


def _inverted(uses: Mapping[str, set[str]]) -> dict[str, set[str]]:
    users: dict[str, set[str]] = defaultdict(set)
    for user, used in uses.items():
        for path in used:
            users[path].add(user)
    return users


def _closure(start: Collection[str], edges: Mapping[str, set[str]]) -> set[str]:
    seen, waiting = set(start), [*start]
    while waiting:
        new = edges.get(waiting.pop(), set()) - seen
        seen |= new
        waiting += new
    return seen


def _matches(path: str, patterns: Collection[str]) -> bool:
    return any(fnmatch.fnmatchcase(path.rpartition("/")[2], pattern) for pattern in patterns)


def _opened(folder: Path, rev: str) -> tuple[Path, str]:
    """Return the repository's top folder, and the hash of a revision."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder. Expected one of a git repository.")
    top = Path(_git(folder, "rev-parse", "--show-toplevel").decode(errors="surrogateescape").removesuffix("\n"))
    if rev.isprintable() and 0 < len(rev) <= LONGEST_REV:
        commit = _git(top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{rev}^{{commit}}", fails="")
        if commit:
            return top, commit.decode().strip()
    raise ConfigError(
        f"--changed {rev}: {folder} has no such commit. Expected a hash, a branch or a tag that is there "
        "(git fetch), or HEAD."
    )


def _git(folder: Path, *arguments: str, fails: str | None = None) -> bytes:
    """Return a git command's output; `fails` instead, if it is given and the command fails."""
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise ConfigError("git is not on the PATH, and --changed asks it. Install it.") from error
    if done.returncode and fails is None:
        message = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        raise ConfigError(f"{folder}: git {arguments[0]} fails: {message}. Name a working tree with --repo.")
    return fails.encode() if done.returncode and fails is not None else done.stdout


def _paths(folder: Path, *arguments: str) -> list[str]:
    return [path.decode(errors="surrogateescape") for path in _git(folder, *arguments).split(b"\0") if path]


def _shown(paths: Collection[str]) -> tuple[str, ...]:
    """Return paths as text, with invalid UTF-8 escaped."""
    return tuple(path.encode(errors="backslashreplace").decode() for path in paths)
