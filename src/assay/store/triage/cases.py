"""The notebooks of investigations, one file each: `cases/NAME.json` in the home.

Files are replaced atomically and contain their own digest, so partial and changed files are detected. Changes
are made under a lock, so concurrent additions are all kept.
"""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from assay.base.errors import ConfigError, unwritten
from assay.base.names import checked_name, meant
from assay.records.case import Case
from assay.store.home import Home

if TYPE_CHECKING:
    from assay.store.objects import ObjectStore


def reject_existing_case(home: Home, name: str) -> None:
    """Raise `ConfigError` if the name is invalid or exists."""
    if (home.cases / _key(name)).exists():
        raise _name_conflict(home, name)


def open_case(home: Home, case: Case) -> None:
    """Create a case. Raises `ConfigError` if its name exists."""
    if not _store(home).put_if_absent(_key(case.name), case.to_sealed_json().encode()):
        raise _name_conflict(home, case.name)


def saved_case(home: Home, name: str) -> Case:
    """Load a case. Raises `ConfigError` if there is none, `DataError` if its file is corrupt."""
    path = home.cases / _key(name)
    if not path.is_file():
        known = sorted(item.stem for item in home.cases.glob("*.json"))
        existing = ", ".join(known) or "none"
        raise ConfigError(
            f"no case '{name}' in {home.cases}{meant(name, known)}; there is {existing}. "
            f"'assay triage case open {name}' creates one."
        )
    return Case.from_json(path.read_bytes(), source=path)


def change_case(home: Home, name: str, change: Callable[[Case], Case]) -> Case:
    """Apply a change to a case and return the result; nothing is written if `change` raises."""
    saved_case(home, name)
    with _locked(home, name):
        changed = change(saved_case(home, name))
        _store(home).put(_key(name), changed.to_sealed_json().encode())
    return changed


@contextmanager
def _locked(home: Home, name: str) -> Iterator[None]:
    path = home.cases / f".{name}.lock"
    try:
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise unwritten(path, error) from error


def _name_conflict(home: Home, name: str) -> ConfigError:
    return ConfigError(
        f"case '{name}' exists in {home.cases}. 'assay triage case show {name}' shows it; choose another name."
    )


def _store(home: Home) -> "ObjectStore":
    from assay.store.objects import open_store  # here, for it is large to import

    return open_store(str(home.cases))


def _key(name: str) -> str:
    return f"{checked_name(name, of='the name of the case')}.json"
