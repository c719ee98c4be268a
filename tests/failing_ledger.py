"""A ledger that fails at chosen transactions, whoever opens it: around the real database, an SQLite file.

error      nothing is asked of it, and it says why
lost       everything is written, but nobody hears
hang       nothing happens, and nobody says so
late       nobody hears in time; it is written after the next transaction, with its locks held until then
twice      it is written, and every statement of it comes in once more
truncated  the connection dies in the middle, with the answer to a statement: nothing is written
slow       the answer takes a moment
away       nothing is asked of it from now on
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, get_args

import pytest

from assay.base.errors import StoreAwayError
from assay.store.ledger import database, writer
from assay.store.ledger.database import Connection, Database, Values

Trouble = Literal["error", "lost", "hang", "late", "twice", "truncated", "slow", "away"]
TROUBLES: tuple[Trouble, ...] = get_args(Trouble)
Transaction = AbstractContextManager[Connection]
READING, WRITING, LOCKED_S = Database.reading, Database.writing, database.LOCKED_S
Statement = tuple[str, Values | Sequence[Values]]


class Troubles:
    """What becomes of each transaction of any ledger that this process opens, by its number."""

    def __init__(self, planned: Mapping[int, Trouble], patch: pytest.MonkeyPatch) -> None:
        self.num_calls = 0
        self._planned = planned
        self._patch = patch
        self._is_away = False
        self._is_over = threading.Event()
        self._late: list[Transaction] = []
        patch.setattr(Database, "reading", lambda item: self._around(lambda: READING(item)))
        patch.setattr(Database, "writing", lambda item: self._around(lambda: WRITING(item)))
        patch.setattr(database, "LOCKED_S", 0.02)
        patch.setattr(writer, "LEAVE_S", 0.2)
        patch.setattr(writer, "RETRY_S", 0.01)

    def end(self) -> None:
        """Nothing is wrong any more; what hung is cut off, what is late is there."""
        self._planned, self._is_away = {}, False
        self._patch.setattr(database, "LOCKED_S", LOCKED_S)  # a thread that goes on is waited for
        self._is_over.set()
        self._make_late()

    @contextmanager
    def _around(self, begin: Callable[[], Transaction]) -> Iterator[Connection]:
        number, self.num_calls = self.num_calls, self.num_calls + 1
        trouble = "error" if self._is_away else self._planned.get(number)
        self._is_away |= trouble == "away"
        if trouble in ("error", "away"):
            raise StoreAwayError("ledger: error")
        if trouble == "hang":
            self._is_over.wait()
            raise StoreAwayError("ledger: no answer")
        if trouble == "slow":
            threading.Event().wait(0.01)
        if trouble == "late":
            yield from self._too_late(begin())
        try:
            with begin() as connection:
                request = Heard(connection, dies_at=number % 7 if trouble == "truncated" else None)
                yield request
                request.end()
        finally:
            self._make_late()
        if trouble == "twice":
            with begin() as connection:
                request.repeat_on(connection)
        if trouble == "lost":
            raise StoreAwayError("ledger: lost")

    def _too_late(self, transaction: Transaction) -> Iterator[Connection]:
        connection = transaction.__enter__()
        try:
            yield connection
        except BaseException as error:
            transaction.__exit__(type(error), error, error.__traceback__)
            raise
        self._make_late()
        self._late.append(transaction)
        raise StoreAwayError("ledger: no answer within 10 s")

    def _make_late(self) -> None:
        late, self._late = self._late, []
        for transaction in late:
            transaction.__exit__(None, None, None)


Strike = Callable[[Mapping[int, Trouble]], Troubles]


@pytest.fixture
def strike(monkeypatch: pytest.MonkeyPatch) -> Iterator[Strike]:
    """Let troubles strike every ledger that this process opens."""
    created: list[Troubles] = []

    def begin(planned: Mapping[int, Trouble]) -> Troubles:
        created.append(Troubles(planned, monkeypatch))
        return created[-1]

    yield begin
    for item in created:
        item.end()


class Heard:
    """What is said in a transaction, which may be cut short."""

    def __init__(self, connection: Connection, *, dies_at: int | None) -> None:
        """`dies_at`: the answer to statement number n, or to the commit if there are fewer, stays out."""
        self._connection = connection
        self._dies_at = dies_at
        self._executed: list[Statement] = []

    def execute(self, statement: str, values: Values = {}) -> list[tuple[Any, ...]]:  # noqa: B006 (not changed)
        """See `Connection`."""
        rows = self._connection.execute(statement, values)
        self._hear(statement, values)
        return rows

    def execute_all(self, statement: str, rows: Sequence[Values]) -> None:
        """See `Connection`."""
        self._connection.execute_all(statement, rows)
        self._hear(statement, rows)

    def end(self) -> None:
        """The commit is next."""
        if self._dies_at is not None:
            raise StoreAwayError("ledger: the connection was lost")

    def repeat_on(self, connection: Connection) -> None:
        """Every statement, in another transaction."""
        for statement, values in self._executed:
            if isinstance(values, Mapping):
                connection.execute(statement, values)
            else:
                connection.execute_all(statement, values)

    def _hear(self, statement: str, values: Values | Sequence[Values]) -> None:
        if len(self._executed) == self._dies_at:
            raise StoreAwayError("ledger: the answer ends too early")
        self._executed.append((statement, values))
