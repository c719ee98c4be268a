"""The sink protocol: a third-party metrics tool that receives points in the order of their creation."""

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
    """Receives points; those written before a `flush` survive a kill."""

    def began(self, step: int, at_s: float) -> None:
        """Called when an attempt begins at `step`: points of later steps were rolled back."""
        ...

    def write(self, points: Sequence[Point]) -> None:
        """Write points."""
        ...

    def flush(self) -> None:
        """Return once all points are delivered."""
        ...

    def close(self, *, failed: bool | None) -> None:
        """Close the sink. `failed`: whether the run failed; None if it still runs."""
        ...


class SinkKind(NamedTuple):
    """A kind of sink."""

    where: str
    """Placeholder for the part after the colon, as shown in messages."""
    open: Callable[[str, Run, MutableMapping[str, Any]], Sink]
    """Opens the sink, given the part after the colon, the run, and a dict that it may use to keep state."""


def is_address(where: str) -> bool:
    """Return whether a destination is the URL of a server or database, not a folder."""
    return "://" in where or where.startswith("databricks")


@contextmanager
def needs(kind: str, package: str) -> Iterator[None]:
    """Turn an `ImportError` into a `ConfigError` that says what to install."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"a sink of kind '{kind}' needs the package {package} ({error}): pip install 'assay[{kind}]'."
        ) from error
