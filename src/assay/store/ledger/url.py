"""Validates ledger URLs without opening anything or importing a driver.

sqlite:///…   that file
postgresql:// a server that a team shares
"""

import re
from pathlib import Path

from assay.base.errors import ConfigError
from assay.base.shown_url import without_secrets

_SQLITE = re.compile(r"sqlite:///(?!:memory:)([^?]+)(\?.*)?")
_POSTGRESQL = re.compile(r"postgres(ql)?(\+psycopg)?://.*")


def checked_url(url: str) -> str:
    """Return the URL. Raises `ConfigError` if it is not a ledger's."""
    if not (_SQLITE.fullmatch(url) or _POSTGRESQL.fullmatch(url)):
        raise ConfigError(
            f"'{without_secrets(url)}' names no ledger. Use sqlite:///path/to/ledger.db or postgresql://user@host/database."
        )
    return url


def sqlite_file(url: str) -> Path | None:
    """Return the file of a SQLite URL; None for a server."""
    found = _SQLITE.fullmatch(url)
    return Path(found[1]) if found else None
