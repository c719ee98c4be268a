"""Time as an argument: code that waits or measures takes a `Clock`, so a test can advance it."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now_s(self) -> float:
        """Seconds since the Unix epoch: comparable between machines; may jump."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start; never decreases, so it measures durations."""
        ...

    def sleep_s(self, seconds: float) -> None:
        """Block for that long."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_s(self) -> float:
        return time.time()

    def monotonic_s(self) -> float:
        return time.monotonic()

    def sleep_s(self, seconds: float) -> None:
        time.sleep(seconds)


def utc_text(seconds_since_epoch: float) -> str:
    """Return ISO 8601 in UTC to the second, e.g. `2026-11-21T03:49:38Z`.

    A clock that was wrong may have recorded a time beyond all calendars; it is named in seconds.
    """
    try:
        return datetime.fromtimestamp(seconds_since_epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{seconds_since_epoch:.6g} s after 1970"
