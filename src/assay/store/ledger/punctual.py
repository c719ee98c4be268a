"""A connection to PostgreSQL whose calls end: with an answer, or with an error when the server falls silent.

A server that is stopped, or a machine behind it that is gone, leaves the connection open, and the driver would
wait for as long as that lasts. No timeout of the server or of a kernel helps where the peer's kernel answers.
"""

import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg

Result = TypeVar("Result")


class PunctualConnection(psycopg.Connection[Any]):
    """As psycopg's, but nobody waits longer than `silent_s` for a next word."""

    silent_s: float = 10.0

    def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        """What the exchange ends with; a connection that fell silent is closed."""
        return super().wait(self._punctually(gen), *arguments, **options)

    def _punctually(self, gen: Generator[Any, Any, Result]) -> Generator[Any, Any, Result]:
        deadline_s = time.monotonic() + self.silent_s
        try:
            wanted = next(gen)
            while True:
                is_ready = yield wanted
                if is_ready:
                    deadline_s = time.monotonic() + self.silent_s
                elif time.monotonic() > deadline_s:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer within {self.silent_s:g} s")
                wanted = gen.send(is_ready)
        except StopIteration as done:
            result: Result = done.value
            return result
