"""Rate-limited logging, so that invalid requests cannot fill the disk.

Records are grouped by the logging line and the line that raised. The first record of a group is written, then none for
a minute, then the number of suppressed records.
"""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from assay.base.json_log import LogHandler

LOG_INTERVAL_S = 60.0

_Kind = tuple[object, ...]


@dataclass
class _Suppressed:
    since_s: float
    title: str
    num_left_out: int = 0


class LimitedLogHandler(LogHandler):
    """Writes rate-limited records to stderr."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        self._kinds: dict[_Kind, _Suppressed] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.write_counts()
        kind = _kind_of(record)
        if kind in self._kinds:
            self._kinds[kind].num_left_out += 1
            return
        self._kinds[kind] = _Suppressed(self._now_s(), f"{record.name}: {record.getMessage():.120}")
        super().emit(record)

    def write_counts(self) -> None:
        """Write how many records of each group were suppressed in the last minute."""
        now_s = self._now_s()
        assert self.lock is not None
        with self.lock, suppress(OSError, ValueError):  # stderr was closed
            for kind, known in [*self._kinds.items()]:
                within_s = now_s - known.since_s
                if within_s < LOG_INTERVAL_S:
                    continue
                if not known.num_left_out:
                    del self._kinds[kind]
                    continue
                text = f"{known.num_left_out:,} more within {within_s:.0f} s: {known.title}"
                count = logging.LogRecord("assay.log", logging.WARNING, "", 0, text, None, None)
                self.stream.write(self.format(count) + "\n")
                self.flush()
                known.since_s, known.num_left_out = now_s, 0  # keep suppressing for another minute


def _kind_of(record: logging.LogRecord) -> _Kind:
    error = record.exc_info[1] if record.exc_info else None
    raised = error.__traceback__ if error is not None else None
    while raised is not None and raised.tb_next is not None:
        raised = raised.tb_next
    where = (raised.tb_frame.f_code, raised.tb_lineno) if raised is not None else None
    return record.name, record.pathname, record.lineno, type(error), where
