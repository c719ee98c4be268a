"""Repositories with import chains that are planted, and what a change in them reaches, worked out by itself."""

import random
import subprocess
from pathlib import Path

import numpy as np

STYLES = (
    "import {package}.{name}",
    "import {package}.{name} as other",
    "from {package}.{name} import value",
    "from {package} import {name}",
    "def later():\n    from {package}.{name} import value",
    "class A:\n    def later(self):\n        import {package}.{name}",
    "try:\n    import {package}.{name}\nexcept ImportError:\n    pass",
    "with open('x') as f:\n    match f:\n        case 1:\n            import {package}.{name}",
    "if not TYPE_CHECKING:\n    import {package}.{name}",
    "if TYPE_CHECKING:\n    pass\nelse:\n    import {package}.{name}",
)
NEVER_RUN = (
    "if TYPE_CHECKING:\n    import {package}.{name}",
    "import typing\nif typing.TYPE_CHECKING:\n    from {package}.{name} import value",
    "# import {package}.{name}",
    "'import {package}.{name}'",
    "'''\nimport {package}.{name}\n'''",
)
"""Mentions of a module that import nothing."""


class ImportWorld:
    """Modules `m0`, `m1`, ... of two packages, one inside the other, and tests; each may import any module.

    `uses[i, j]`: module or test i imports module j. Tests come behind the modules."""

    def __init__(self, seed: int, *, modules: int, tests: int, density: float, is_acyclic: bool) -> None:
        rng = random.Random(seed)
        self.modules, self.tests = modules, tests
        self.uses = np.zeros((modules + tests, modules + tests), bool)
        self.files = {"src/pkg/__init__.py": "", "src/pkg/sub/__init__.py": ""}
        self.packages = [rng.choice(["pkg", "pkg.sub"]) for _ in range(modules)]
        self.paths = [f"src/{self.packages[number].replace('.', '/')}/m{number}.py" for number in range(modules)] + [
            rng.choice([f"tests/test_{number}.py", f"tests/deep/test_{number}.py"]) for number in range(tests)
        ]
        for user in range(modules + tests):
            lines = ["from typing import TYPE_CHECKING", "value = 1"]
            for used in range(modules):
                if used == user or (is_acyclic and used > user):
                    continue
                if rng.random() < density:
                    self.uses[user, used] = True
                    lines.append(self._import(rng, user, used))
                elif rng.random() < 0.2:
                    lines.append(rng.choice(NEVER_RUN).format(package=self.packages[used], name=f"m{used}"))
            self.files[self.paths[user]] = "\n".join(lines) + "\n"

    def _import(self, rng: random.Random, user: int, used: int) -> str:
        package, name = self.packages[used], f"m{used}"
        if user < self.modules and rng.random() < 0.4:
            dots = {("pkg", "pkg"): ".", ("pkg", "pkg.sub"): ".sub", ("pkg.sub", "pkg"): ".."}
            location = dots.get((self.packages[user], package), ".")
            whole = f"{location}{name}" if location.endswith(".") else f"{location}.{name}"
            return rng.choice([f"from {location} import {name}", f"from {whole} import value"])
        return rng.choice(STYLES).format(package=package, name=name)

    def reached(self, changed: list[int]) -> list[str]:
        """Tests from which a chain of imports leads to a changed module, or that are changed themselves, by
        powers of the matrix."""
        closure = np.eye(len(self.paths), dtype=bool) | self.uses
        for _ in self.paths:
            closure = (closure.astype(int) @ closure.astype(int)) > 0
        return sorted(
            self.paths[number] for number in range(self.modules, len(self.paths)) if closure[number, changed].any()
        )

    def unused(self, changed: list[int]) -> list[str]:
        """Changed modules to which no test's chain leads."""
        return sorted(self.paths[number] for number in changed if not self.reached([number]))


def write_files(folder: Path, files: dict[str, str]) -> None:
    """Texts into a folder."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def git(folder: Path, *arguments: str) -> str:
    """What git prints, whatever the machine's own settings are."""
    who = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b.c",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "core.hooksPath=/dev/null",
    ]
    ended = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return ended.stdout.strip()


def commit_all(folder: Path, files: dict[str, str]) -> str:
    """A commit of all that lies in the folder, with these texts; its hash."""
    if not (folder / ".git").exists():
        folder.mkdir(parents=True, exist_ok=True)
        git(folder, "init", "-q")
    write_files(folder, files)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "x")
    return git(folder, "rev-parse", "HEAD")
