"""What a ledger asks of its database, a SQLite file or PostgreSQL: sessions, transactions, tables, errors.

Statements are plain SQL that both understand, with values as `:name`; one text for both. A command that lists
runs is over before a toolkit for databases would be imported.

No call waits for ever: what is locked is an error after `LOCKED_S`, a silent server one after `SILENT_S`.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Protocol

from assay.base.errors import StoreAwayError, StoreError, StoreFullError
from assay.base.shown_url import without_secrets
from assay.store.ledger import tables
from assay.store.ledger.url import checked_url

LOCKED_S = 5
"""Timeout for locks of others and for connecting to a server."""
SILENT_S = 10
"""Timeout of one statement; a stopped server keeps its connections open."""

Values = Mapping[str, Any]


class Connection(Protocol):
    """A connection within a transaction."""

    def execute(self, statement: str, values: Values = ...) -> list[tuple[Any, ...]]:
        """Return all rows of a statement with `:name` placeholders."""

    def execute_all(self, statement: str, rows: Sequence[Values]) -> None:
        """Execute a statement for each row of values."""


class Session(Connection, Protocol):
    """A connection with control of its transactions."""

    def begin(self, *, writes: bool) -> None:
        """Begin a transaction."""

    def commit(self) -> None:
        """Commit the transaction."""

    def rollback(self) -> None:
        """Roll the transaction back."""

    def close(self) -> None:
        """Close the session in any state."""


class Database(ABC):
    """The sessions of one ledger; safe to share between threads."""

    column_types: ClassVar[Mapping[str, str]]
    """The database's names of the types in `tables`."""
    errors: ClassVar[tuple[type[Exception], ...]]
    """Exceptions of the driver."""
    mistakes: ClassVar[tuple[type[Exception], ...]]
    """Exceptions caused by errors in our statements."""
    operational: ClassVar[type[Exception]]
    """Exceptions that may be temporary."""
    schema: ClassVar[str] = ""
    """Prefix of the ledger's tables where a session has a view of the same name."""

    def __init__(self, shown: str) -> None:
        """`shown`: its name in error messages."""
        self.shown = shown
        self._idle: list[Session] = []
        self.prepare: Callable[[Session], None] | None = None
        """Called once with each new session."""

    @abstractmethod
    def connected(self) -> Session:
        """Open a session."""

    @abstractmethod
    def table_names(self, connection: Connection) -> set[str]:
        """Return the names of existing tables."""

    @abstractmethod
    def lock_creation(self, connection: Connection) -> None:
        """Block concurrent table creation until this transaction ends."""

    @abstractmethod
    def is_away(self, reason: str) -> bool:
        """Return whether the error may be temporary, e.g. a lock or an unavailable server."""

    def is_usable(self, session: Session) -> bool:  # noqa: ARG002
        """Return whether an idle session is still connected."""
        return True

    def refuse_vanished(self) -> None:  # noqa: B027 (where that cannot happen)
        """Raise `StoreError` if idle sessions would write to a deleted database."""

    def close(self) -> None:
        """Close all idle sessions."""
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a read transaction."""
        with self._transaction(writes=False) as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a write transaction."""
        self.refuse_vanished()
        with self._transaction(writes=True) as connection:
            yield connection

    def make_tables(self) -> None:
        """Make all tables in an empty database; raise `StoreError` if it holds those of another layout."""
        with self.reading() as connection:
            if self._has_tables(connection):
                return
        with self.writing() as connection:
            self.lock_creation(connection)
            if self._has_tables(connection):
                return
            for table in tables.TABLES:
                for statement in table.creation(self.column_types):
                    connection.execute(statement)
            version = {"version": tables.LAYOUT_VERSION}
            statement = f"INSERT INTO {tables.layout.name} VALUES (:version) ON CONFLICT DO NOTHING"
            connection.execute(statement, version)

    @contextmanager
    def _transaction(self, *, writes: bool) -> Iterator[Connection]:
        with self._named_errors():
            session = self._session()
            try:
                session.begin(writes=writes)
                yield session
                session.commit()
            except self.errors:
                session.close()  # who knows what state it is in
                raise
            except BaseException:
                session.rollback()
                self._idle.append(session)
                raise
            self._idle.append(session)

    def _session(self) -> Session:
        while True:
            try:
                session = self._idle.pop()
            except IndexError:
                return self._prepared()
            if self.is_usable(session):
                return session
            session.close()

    def _prepared(self) -> Session:
        session = self.connected()
        try:
            if self.prepare is not None:
                session.begin(writes=False)
                self.prepare(session)
                session.commit()
        except BaseException:
            session.close()
            raise
        return session

    def _has_tables(self, connection: Connection) -> bool:
        present, expected = self.table_names(connection), {table.name for table in tables.TABLES}
        if not present & expected:
            return False
        found = []
        if tables.layout.name in present:
            found = [version for (version,) in connection.execute(f"SELECT version FROM {tables.layout.name}")]
        missing = sorted(expected - present - tables.CACHES)
        if found != [tables.LAYOUT_VERSION] or missing:
            shown = ", ".join(map(str, found)) or "none"
            shown += f" and lack {', '.join(missing)}" if missing else ""
            raise StoreError(
                f"ledger {self.shown}: its tables have layout {shown}; this assay reads layout "
                f"{tables.LAYOUT_VERSION}. Use the assay that wrote it, or name another ledger in "
                "$ASSAY_LEDGER: 'assay runs --rebuild' fills it from the folders of the runs."
            )
        return present >= tables.CACHES

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except self.mistakes:
            raise
        except self.errors as error:
            reason = str(error).strip() or type(error).__name__
            is_away = isinstance(error, self.operational) and self.is_away(reason)
            kind = StoreAwayError if is_away else StoreFullError if _is_full(reason) else StoreError
            raise kind(f"ledger {self.shown}: {reason}. {hint_for(reason)}") from error


def shown_url(url: str) -> str:
    """Return a ledger's URL without its password."""
    return without_secrets(re.sub(r"^postgres(ql)?(\+psycopg)?://", "postgresql+psycopg://", checked_url(url)))


def _is_full(reason: str) -> bool:
    return any(words in reason for words in ("disk is full", "No space left"))


def hint_for(reason: str) -> str:
    """Return a hint for a database's error message."""
    hints = {
        "lock timeout": f"Another process has held it for over {LOCKED_S} s: wait for it, or stop it.",
        "timeout expired": "Something accepts connections there and says nothing: a server that is stopped?",
        "no answer": "The server keeps the connection and says nothing: is it stopped, or overloaded?",
        "locked": f"Another process has held it for over {LOCKED_S} s: wait for it, or stop it.",
        "disk is full": "Free space on its disk; what was recorded before is intact.",
        "No space left": "Free space on its disk; what was recorded before is intact.",
        "disk I/O error": "Its disk is full, or fails: free space there; what was recorded before is intact.",
        "readonly": "Make the file and its folder writable.",
        "unable to open": "Make its folder readable and writable, or name another ledger in $ASSAY_LEDGER.",
        "not a database": "Another file is in its place: move it away.",
        "malformed": "The file is damaged: move it away; the runs' folders hold all facts still.",
        "authentication": "Give the right user and password in the URL.",
        "does not exist": "Create the database, or name an existing one in $ASSAY_LEDGER.",
    }
    return next((hint for sign, hint in hints.items() if sign in reason), "Is the server running and reachable?")
