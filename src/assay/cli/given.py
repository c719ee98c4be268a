"""What commands are given: kinds of paths, and the home that the environment names."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from assay.store.home import Home
    from assay.store.ledger.ledger import Ledger

PATH = click.Path(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)


def given_home() -> "Home":
    """Where this command finds and leaves its runs."""
    from assay.store.home import Home

    return Home.from_environment()


def opened_ledger(home: "Home") -> "Ledger":
    """The home's ledger, made if there is none, with what it missed while it was away."""
    return _up_to_date(home, home.open_ledger())


def found_ledger(home: "Home") -> "Ledger | None":
    """Likewise, but nothing is made."""
    ledger = home.find_ledger()
    return None if ledger is None else _up_to_date(home, ledger)


def _up_to_date(home: "Home", ledger: "Ledger") -> "Ledger":
    from assay.store.ledger.writer import missed_subjects

    if missed_subjects(home):
        from assay.launch.rebuild import fold_in_missed

        for problem in fold_in_missed(home, ledger):
            click.echo(problem, err=True)
    return ledger
