"""Folders of weights and tokenizers inside installed Python packages, written as `package:NAME/FOLDER`."""

import importlib.util
from pathlib import Path

from assay.base.errors import NotInstalledError

PREFIX = "package:"


def installed_path(path: str) -> Path:
    """Return the path that a plain path or `package:NAME/FOLDER` names; it may not exist. Imports no package."""
    if not path.startswith(PREFIX):
        return Path(path)
    name, _, inside = path.removeprefix(PREFIX).partition("/")
    # A name with dots would import the package before it is found.
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise NotInstalledError(f"{path}: the Python package '{name}' is not installed. Install it with pip.")
    return Path(spec.submodule_search_locations[0]) / inside
