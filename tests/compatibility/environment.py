"""Environments that hold one package and what it needs, made by pip in `build/`, once.

Their versions stand in `environments/NAME.txt`. Where pip cannot have them, a test skips or fails, and says so.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PINS = Path(__file__).parent / "environments"
BUILD = Path(__file__).parents[2] / "build"


def python_with(name: str, requires: Callable[[str, bool, str], None]) -> str:
    """The interpreter of an environment; its packages are the part `sdks` of what tests need."""
    folder, pins = BUILD / name, PINS / f"{name}.txt"
    done = folder / pins.name
    if not done.is_file() or done.read_text() != pins.read_text():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1"]
        made = subprocess.run(
            [str(folder / "bin" / "python"), *install, "-r", str(pins)], capture_output=True, text=True
        )
        why = f"pip could not install {name}: {made.stderr.strip()[-300:]}"
        requires("sdks", made.returncode == 0, why)
        done.write_text(pins.read_text())
    return str(folder / "bin" / "python")
