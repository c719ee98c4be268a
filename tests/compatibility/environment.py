"""Environments that hold one package and what it needs, made by pip in `build/`, once.

Their versions stand in `environments/NAME.txt`. Where pip cannot have them, a test skips or fails, and says so.
"""

import fcntl
import shutil
import site
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PINS = Path(__file__).parent / "environments"
BUILD = Path(__file__).parents[2] / "build"


def python_with(
    name: str, requires: Callable[[str, bool, str], None], *, part: str = "sdks", on_top_of_ours: bool = False
) -> str:
    """The interpreter of an environment; its packages are a `part` of what tests need.

    On top of ours it holds what ours lacks, or has in another version; then nothing is installed but what is
    pinned, and compiled once it is imported.
    """
    folder, pins = BUILD / name, PINS / f"{name}.txt"
    done = folder / pins.name
    BUILD.mkdir(exist_ok=True)
    with (BUILD / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one of pytest's workers makes it, the others wait
        if not done.is_file() or done.read_text() != pins.read_text():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            options = ["--quiet", "--disable-pip-version-check", "--retries", "1"]
            if on_top_of_ours:
                options += ["--no-deps", "--no-compile"]
                (own,) = folder.glob("lib/python*/site-packages")
                (own / "ours.pth").write_text(f"import site; site.addsitedir({site.getsitepackages()[0]!r})\n")
            created = subprocess.run(
                [str(folder / "bin" / "python"), "-m", "pip", "install", *options, "-r", str(pins)],
                capture_output=True,
                text=True,
            )
            why = f"pip could not install {name}: {created.stderr.strip()[-300:]}"
            requires(part, created.returncode == 0, why)
            done.write_text(pins.read_text())
    return str(folder / "bin" / "python")
