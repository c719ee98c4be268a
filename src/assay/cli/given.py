"""What commands are given: kinds of paths, and the home that the environment names."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from assay.store.home import Home

PATH = click.Path(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)


def given_home() -> "Home":
    """Where this command finds and leaves its runs."""
    from assay.store.home import Home

    return Home.from_environment()
