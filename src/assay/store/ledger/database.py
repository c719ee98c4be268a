"""Which database a ledger's URL means, and how it is opened: a SQLite file, or PostgreSQL.

    sqlite:///…   that file
    postgresql:// a server that a team shares

SQLite runs in WAL mode: readers and the one writer do not wait for each other. It syncs at checkpoints only
(`synchronous=NORMAL`): a power cut may take the last facts, never the file; they are in the run's folder still.

No call waits for ever: what is locked is an error after `LOCKED_S`, a silent server one after `SILENT_S`.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, OperationalError, ProgrammingError

from assay.base.errors import ConfigError, StoreAwayError, StoreError
from assay.store.ledger import tables
from assay.store.ledger.url import checked_url, sqlite_file

LOCKED_S = 5
"""How long what somebody else holds is waited for: a SQLite file, a table, a server's first word."""
SILENT_S = 10
"""How long a server may work on one statement without a word; a stopped one keeps its connections open."""

_WRITES = {"assay_writes": True}
_CREATION_LOCK = 0x61737361  # any number that every assay agrees on


def ledger_url(url: str) -> URL:
    """The database that `url` means."""
    try:
        parsed = make_url(checked_url(url))
    except ArgumentError as error:
        raise ConfigError(f"'{url}' cannot be read as a URL: {error}") from error
    return parsed if parsed.drivername == "sqlite" else parsed.set(drivername="postgresql+psycopg")


def open_engine(url: URL) -> Engine:
    """An engine on tables of this assay's layout, made if there are none."""
    if (path := _sqlite_file(url)) is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{path}: cannot make the ledger's folder: {error.strerror}.") from error
        engine = sqlalchemy.create_engine(url, connect_args={"timeout": LOCKED_S})
        event.listen(engine, "connect", _set_pragmas)
        event.listen(engine, "begin", _begin_sqlite)
    else:
        try:
            engine = sqlalchemy.create_engine(url, pool_pre_ping=True)
            event.listen(engine, "do_connect", _connect_punctually)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"a PostgreSQL ledger needs {error.name}: pip install 'assay[postgres]'."
            ) from error
    try:
        _make_tables(engine)
    except BaseException:
        engine.dispose()
        raise
    return engine


def copy_sqlite(file: Path, to: Path) -> None:
    """As it is now, also from a folder in which SQLite may not make the files that it reads with."""
    for mode in ("mode=ro", "immutable=1"):
        try:
            with (
                closing(sqlite3.connect(f"{file.absolute().as_uri()}?{mode}", uri=True)) as whole,
                closing(sqlite3.connect(to)) as copy,
            ):
                whole.backup(copy)
                return
        except sqlite3.Error as error:
            reason = str(error)
    raise StoreError(f"ledger {file}: {reason}. {_cure(reason)}")


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """One consistent view of the ledger."""
    with _named_errors(engine), engine.connect() as connection, connection.begin():
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One transaction: everything in it is written, or nothing."""
    _refuse_vanished(engine)
    with _named_errors(engine), engine.connect() as connection:
        connection = connection.execution_options(**_WRITES)
        with connection.begin():
            yield connection


def _refuse_vanished(engine: Engine) -> None:
    """An open connection would go on writing to a file that has no name any more."""
    path = _sqlite_file(engine.url)
    if path is None or path.exists() or engine.pool.checkedin() == 0:  # type: ignore[attr-defined]
        return
    engine.dispose()
    _make_tables(engine)
    raise StoreError(
        f"ledger {path}: the file is gone; a new one was made, without the older runs. "
        "'assay runs --rebuild' writes them down again from their folders."
    )


def _connect_punctually(_dialect: object, _record: object, arguments: Any, options: Any) -> Any:
    from assay.store.ledger.punctual import PunctualConnection  # the driver is an extra

    limits = {"connect_timeout": LOCKED_S, "tcp_user_timeout": SILENT_S * 1000} | options
    connection = PunctualConnection.connect(*arguments, **limits)
    connection.silent_s = SILENT_S
    connection.execute(f"SET lock_timeout = {LOCKED_S * 1000}")
    connection.commit()
    return connection


def _set_pragmas(connection: Any, _: object) -> None:
    # The driver would begin transactions by itself, and too late; `_begin_sqlite` does it instead.
    connection.isolation_level = None
    _use_wal(connection)
    connection.execute("PRAGMA synchronous = NORMAL")


def _use_wal(connection: Any) -> None:
    # The switch, made once in a file's life, does not wait for others as other statements do.
    deadline_s = time.monotonic() + LOCKED_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline_s:
                raise
            time.sleep(0.02)


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and then writes would fail, not wait, when another has written in between.
    writes = connection.get_execution_options().get("assay_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _make_tables(engine: Engine) -> None:
    with reading(engine) as connection:
        present = set(sqlalchemy.inspect(connection).get_table_names())
        if tables.layout.name in present:
            _check_layout(connection)
        if present >= set(tables.metadata.tables):
            return
    with writing(engine) as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_CREATION_LOCK})")
        is_new = not sqlalchemy.inspect(connection).has_table(tables.layout.name)
        # A table that an older assay does not know changes nothing for it, so the layout's version stays.
        tables.metadata.create_all(connection)
        if is_new:
            connection.execute(tables.layout.insert().values(version=tables.LAYOUT_VERSION))
        _check_layout(connection)


def _check_layout(connection: Connection) -> None:
    found = connection.execute(sqlalchemy.select(tables.layout.c.version)).scalars().all()
    if found != [tables.LAYOUT_VERSION]:
        shown = ", ".join(map(str, found)) or "none"
        raise StoreError(
            f"ledger {_shown(connection.engine)}: its tables have layout {shown}; this assay reads layout "
            f"{tables.LAYOUT_VERSION}. Use the assay that wrote it, or name another ledger in $ASSAY_LEDGER: "
            "'assay runs --rebuild' fills it from the folders of the runs."
        )


@contextmanager
def _named_errors(engine: Engine) -> Iterator[None]:
    try:
        yield
    except (IntegrityError, ProgrammingError):
        raise  # our own mistakes
    except DBAPIError as error:
        reason = str(error.orig).strip() or type(error.orig).__name__
        is_away = isinstance(error, OperationalError) and _is_away(engine, reason)
        kind = StoreAwayError if is_away else StoreError
        raise kind(f"ledger {_shown(engine)}: {reason}. {_cure(reason)}") from error


def _is_away(engine: Engine, reason: str) -> bool:
    """Whether the database may answer another time: a lock is released, a server comes back."""
    if engine.dialect.name == "sqlite":
        return "locked" in reason
    return not any(words in reason for words in ("authentication failed", "does not exist", "disk is full"))


def _cure(reason: str) -> str:
    cures = {
        "lock timeout": f"Another process has held it for over {LOCKED_S} s: wait for it, or stop it.",
        "timeout expired": "Something accepts connections there and says nothing: a server that is stopped?",
        "no answer": "The server keeps the connection and says nothing: is it stopped, or overloaded?",
        "locked": f"Another process has held it for over {LOCKED_S} s: wait for it, or stop it.",
        "disk is full": "Free space on its disk; what was recorded before is intact.",
        "No space left": "Free space on its disk; what was recorded before is intact.",
        "readonly": "Make the file and its folder writable.",
        "unable to open": "Make its folder readable and writable, or name another ledger in $ASSAY_LEDGER.",
        "not a database": "Another file is in its place: move it away.",
        "malformed": "The file is damaged: move it away; the runs' folders hold all facts still.",
        "authentication": "Give the right user and password in the URL.",
        "does not exist": "Create the database, or name an existing one in $ASSAY_LEDGER.",
    }
    return next(
        (cure for sign, cure in cures.items() if sign in reason), "Is the server running and reachable?"
    )


def _shown(engine: Engine) -> str:
    return str(_sqlite_file(engine.url) or engine.url.render_as_string(hide_password=True))


def _sqlite_file(url: URL) -> Path | None:
    return sqlite_file(url.render_as_string(hide_password=False))
