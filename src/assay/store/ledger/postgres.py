"""A ledger on PostgreSQL: sessions whose calls end, with an answer or, when the server falls silent, an error.

A server that is stopped, or a machine behind it that is gone, leaves the connection open, and the driver would
wait for as long as that lasts. No timeout of the server or of a kernel helps where the peer's kernel answers.
"""

import re
import time
from collections.abc import Generator, Sequence
from functools import cache
from typing import Any, ClassVar, TypeVar

from assay.base.errors import ConfigError
from assay.store.ledger import database, tables
from assay.store.ledger.database import Connection, Database, Session, Values, shown_url

try:
    import psycopg
except ModuleNotFoundError as error:
    raise ConfigError(f"a PostgreSQL ledger needs {error.name}: pip install 'assay[postgres]'.") from error

Result = TypeVar("Result")

_CREATION_LOCK = 0x61737361  # any number that every assay agrees on


def postgres_database(url: str) -> "PostgresDatabase":
    """Return the database of a URL, without connecting."""
    url = re.sub(r"^postgres(ql)?(\+psycopg)?://", "postgresql://", url)
    try:
        psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise ConfigError(f"'{shown_url(url)}' cannot be read as a URL: {str(error).strip()}") from None
    return PostgresDatabase(url)


class PostgresDatabase(Database):
    """A ledger on a PostgreSQL server."""

    column_types: ClassVar = {tables.BYTES: "BYTEA", tables.SERIAL: "SERIAL"}
    errors = (psycopg.Error,)
    mistakes = (psycopg.IntegrityError, psycopg.ProgrammingError)
    operational = psycopg.OperationalError

    def __init__(self, url: str) -> None:
        super().__init__(shown_url(url))
        self._url = url

    def connected(self) -> "_PostgresSession":
        """Open a session."""
        return _PostgresSession(self._url)

    def table_names(self, connection: Connection) -> set[str]:
        """Return the names of existing tables."""
        query = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
        return {name for (name,) in connection.execute(query)}

    def lock_creation(self, connection: Connection) -> None:
        """Block concurrent table creation until this transaction ends."""
        connection.execute(f"SELECT pg_advisory_xact_lock({_CREATION_LOCK})")

    def is_usable(self, session: Session) -> bool:
        """Return whether the server still accepts it."""
        try:
            session.execute("SELECT 1")
            session.rollback()
        except psycopg.Error:
            return False
        return True

    def is_away(self, reason: str) -> bool:
        """Return whether the error may be temporary."""
        never = ("authentication failed", "does not exist", "disk is full")
        return not any(words in reason for words in never)


class _PunctualConnection(psycopg.Connection[Any]):
    """psycopg's connection with a limit of `silent_s` on the server's silence."""

    silent_s: float = 10.0

    def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        """Return the result of the exchange; close the connection if the server is silent."""
        return super().wait(self._punctually(gen), *arguments, **options)

    def _punctually(self, gen: Generator[Any, Any, Result]) -> Generator[Any, Any, Result]:
        deadline_s = time.monotonic() + self.silent_s
        try:
            wait_for = next(gen)
            while True:
                is_ready = yield wait_for
                if is_ready:
                    deadline_s = time.monotonic() + self.silent_s
                elif time.monotonic() > deadline_s:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer within {self.silent_s:g} s")
                wait_for = gen.send(is_ready)
        except StopIteration as done:
            result: Result = done.value
            return result


class _PostgresSession:
    """A session for one thread at a time; the first statement of a transaction begins it."""

    def __init__(self, url: str) -> None:
        known = psycopg.conninfo.conninfo_to_dict(url)
        limits: dict[str, Any] = {
            "connect_timeout": database.LOCKED_S,
            "tcp_user_timeout": database.SILENT_S * 1000,
            "client_encoding": "utf8",  # a database made under the locale C has none, and returns bytes
        }
        self._driver = _PunctualConnection.connect(**{**limits, **known})
        self._driver.silent_s = database.SILENT_S
        self.execute(f"SET lock_timeout = {database.LOCKED_S * 1000}")
        self.commit()

    def execute(self, statement: str, values: Values = {}) -> list[tuple[Any, ...]]:  # noqa: B006 (not changed)
        cursor = self._driver.execute(_driver_statement(statement), values)
        return cursor.fetchall() if cursor.description is not None else []

    def execute_all(self, statement: str, rows: Sequence[Values]) -> None:
        with self._driver.cursor() as cursor:
            cursor.executemany(_driver_statement(statement), rows)

    def begin(self, *, writes: bool) -> None:
        # All statements of a read see one moment, as they do in SQLite.
        self._driver.isolation_level = None if writes else psycopg.IsolationLevel.REPEATABLE_READ

    def commit(self) -> None:
        self._driver.commit()

    def rollback(self) -> None:
        self._driver.rollback()

    def close(self) -> None:
        self._driver.close()


@cache
def _driver_statement(statement: str) -> bytes:
    """Convert `:name` to the driver's placeholders; our statements have no other colons."""
    return re.sub(r":(\w+)", r"%(\1)s", statement.replace("%", "%%")).encode()
