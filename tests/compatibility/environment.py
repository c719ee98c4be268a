"""Environments that hold one package and what it needs, made by pip in `build/`, once.

Of which versions stands in `environments/NAME.txt`; where pip cannot have them, the test says so and skips.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PINS = Path(__file__).parent / "environments"
BUILD = Path(__file__).parents[2] / "build"


def python_with(name: str) -> str:
    """The interpreter of an environment."""
    folder, pins = BUILD / name, PINS / f"{name}.txt"
    done = folder / pins.name
    if not done.is_file() or done.read_text() != pins.read_text():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1"]
        made = subprocess.run(
            [str(folder / "bin" / "python"), *install, "-r", str(pins)], capture_output=True, text=True
        )
        if made.returncode:
            pytest.skip(f"pip could not install {name}: {made.stderr.strip()[-300:]}")
        done.write_text(pins.read_text())
    return str(folder / "bin" / "python")
