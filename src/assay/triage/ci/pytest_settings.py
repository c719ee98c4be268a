"""Reads pytest's settings in the top folder: which files are tests, and where imports are resolved."""

import configparser
import fnmatch
import posixpath
import shlex
import tomllib
from collections.abc import Mapping
from typing import Any, NamedTuple

TEST_FILES = ("test_*.py", "*_test.py")
"""Pytest's default."""
_SECTIONS = {"setup.cfg": "tool:pytest"}


class PytestSettings(NamedTuple):
    """The relevant settings."""

    python_files: tuple[str, ...]
    testpaths: tuple[str, ...]
    """Folders that contain all tests, relative to the top folder; empty: anywhere."""
    pythonpath: tuple[str, ...]
    """Folders relative to the top folder."""

    def is_test(self, path: str) -> bool:
        """Return whether pytest would collect tests from a file with this path."""
        name = path.rpartition("/")[2]
        if self.testpaths and not any(
            path == testpath or path.startswith(f"{testpath}/") for testpath in self.testpaths
        ):
            return False
        return any(fnmatch.fnmatchcase(path if "/" in file else name, file) for file in self.python_files)


def pytest_settings(files: Mapping[str, bytes]) -> PytestSettings:
    """Return the settings of the first file, in pytest's order, that has any; otherwise the defaults."""
    options = next((found for name, content in files.items() if (found := _options(name, content))), {})
    patterns = tuple(word for word in _words(options.get("python_files")) if word.endswith(".py"))
    return PytestSettings(
        patterns or TEST_FILES, _folders(options.get("testpaths")), _folders(options.get("pythonpath"))
    )


def _options(name: str, content: bytes) -> dict[str, Any]:
    text = content.decode(errors="replace")
    try:
        if name.endswith(".toml"):
            found = tomllib.loads(text).get("tool", {}).get("pytest", {}).get("ini_options", {})
            return found if isinstance(found, dict) else {}
        parser = configparser.RawConfigParser()
        parser.read_string(text)
        return dict(parser.items(_SECTIONS.get(name, "pytest")))
    except (ValueError, AttributeError, RecursionError, configparser.Error):
        return {}


def _folders(value: Any) -> tuple[str, ...]:
    """Return relative paths; empty if one is the top folder itself or a pattern."""
    folders = tuple(posixpath.normpath(word) for word in _words(value))
    return () if any(folder == "." or set(folder) & set("*?[") for folder in folders) else folders


def _words(value: Any) -> list[str]:
    if isinstance(value, list):
        return [str(item) for item in value]
    try:
        return shlex.split(str(value or ""))
    except ValueError:
        return []
