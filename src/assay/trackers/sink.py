"""What a sink is: somebody else's home for metrics, to which points are handed in the order in which they
came."""

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from assay.base.errors import ConfigError
from assay.records.run import Run


class Point(NamedTuple):
    """One value of one metric."""

    name: str
    step: int
    at_s: float
    """Seconds since the Unix epoch."""
    value: float


class Sink(Protocol):
    """Takes points; what it took is there, should it be killed after `flush`."""

    def began(self, step: int, at_s: float) -> None:
        """An attempt begins at this step: what was handed over of later ones was rolled back."""
        ...

    def write(self, points: Sequence[Point]) -> None:
        """Some more."""
        ...

    def flush(self) -> None:
        """Return when all is handed over."""
        ...

    def close(self, *, failed: bool | None) -> None:
        """The run has ended; None: it goes on."""
        ...


class SinkKind(NamedTuple):
    """How a sink is named and opened."""

    where: str
    """What stands behind the colon, in a word."""
    open: Callable[[str, Run, MutableMapping[str, Any]], Sink]
    """From what stands behind the colon, the run, and its own memory of earlier times, into which it may
    write."""


def is_address(where: str) -> bool:
    """Whether a destination is a server's or a database's URL, and no folder."""
    return "://" in where or where.startswith("databricks")


@contextmanager
def needs(kind: str, package: str) -> Iterator[None]:
    """A `ConfigError` that says what to install, where something is not there."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"a sink of kind '{kind}' needs the package {package} ({error}): pip install 'assay[{kind}]'."
        ) from error
