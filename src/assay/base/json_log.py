"""Log lines as JSON: one object a line, with time, level, logger and message, and the ids that are known.

    logging records            --> `JsonFormatter` --+
    lines printed to stderr    --> `JsonLines` ------+--> {"time": ..., "level": ..., "logger": ..., "message": ...}
    uncaught exceptions        --> excepthook -------+      "run", "job", "request", ...; "exception": a traceback

The format is that of this process and of those that it starts: they find it in the environment. What a library writes
to the file descriptor itself, without Python, stays as it is.
"""

import json
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType
from typing import IO, Any, cast

from assay.base.visible import terminal_of

LOG_FORMAT = "ASSAY_LOG_FORMAT"
"""Environment variable: `text` or `json`."""
MAX_CHARACTERS = 3000
"""Longest message or traceback; the middle of longer ones is cut."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LEVELS = {"error": logging.ERROR, "warning": logging.WARNING}
"""Level of a printed line by the word before its first colon."""
_fields: ContextVar[dict[str, object]] = ContextVar("fields of log lines", default={})  # noqa: B039 (never changed)
_process_fields: dict[str, object] = {}


def is_json_log() -> bool:
    """Return whether log lines of this process are JSON."""
    return os.environ.get(LOG_FORMAT) == "json"


def use_log_format(logger: str, **fields: object) -> None:
    """Write what this process logs and prints to stderr as JSON, if the environment says so.

    `logger`: the name for what is printed; `fields`: ids that all its lines have, such as `run`.
    """
    _process_fields.update(fields)
    if not is_json_log() or isinstance(sys.stderr, JsonLines):
        return
    lines = JsonLines(terminal_of(sys.stderr), logger)
    sys.stderr = cast(Any, lines)
    root, handler = logging.getLogger(), LogHandler()
    handler.addFilter(lambda _: root.handlers == [handler])  # a server's own handler writes instead
    root.addHandler(handler)
    logging.captureWarnings(True)

    def log_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        lines.write_record(logging.CRITICAL, "uncaught exception", (kind, error, trace))

    sys.excepthook = log_exception
    threading.excepthook = lambda failed: log_exception(
        failed.exc_type, failed.exc_value or failed.exc_type(), failed.exc_traceback
    )


@contextmanager
def log_fields(**fields: object) -> Iterator[None]:
    """Add fields to all lines that are logged in the block, and by threads that take over its context."""
    token = _fields.set({**_fields.get(), **fields})
    try:
        yield
    finally:
        _fields.reset(token)


def _cut(text: str) -> str:
    """Cut the middle of a long text."""
    half = MAX_CHARACTERS // 2
    if len(text) <= MAX_CHARACTERS:
        return text
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters left out]\n{text[-half:]}"


def plain_log(text: str) -> str:
    """Return log lines as people read them: of those that are JSON, the message and the traceback."""
    lines = []
    for line in text.splitlines():
        try:
            fields = json.loads(line)
            lines += [fields["message"], *([fields["exception"]] if "exception" in fields else [])]
        except (ValueError, TypeError, KeyError):
            lines.append(line)
    return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """A record as one JSON object, in ASCII: no text in it can break the line or move a cursor."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _cut(record.getMessage()),
            **_process_fields,
            **_fields.get(),
        }
        if record.exc_info:
            fields["exception"] = _cut(self.formatException(record.exc_info))
        return json.dumps({name: _unicode(value) for name, value in fields.items()})


def _unicode(value: object) -> object:
    """Escape lone surrogates, as of a file's name that is no UTF-8: few parsers of JSON accept them."""
    return value if isinstance(value, int) else str(value).encode("utf-8", "backslashreplace").decode()


class LogHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes records to stderr in the format of this process."""

    def __init__(self) -> None:
        super().__init__(sys.stderr.stream if isinstance(sys.stderr, JsonLines) else sys.stderr)
        if is_json_log():
            self.setFormatter(JsonFormatter())

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record) if is_json_log() else _cut(super().format(record))


class JsonLines:
    """A stream whose lines are written as JSON objects. Lines that are written in one call are one object."""

    encoding = "utf-8"

    def __init__(self, stream: IO[str], logger: str) -> None:
        self.stream = stream
        self._logger = logger
        self._formatter = JsonFormatter()
        self._buffer = threading.local()
        """The text since the last end of a line, by thread: `print` writes the end of a line in a call of its own."""

    def write(self, text: str) -> int:
        buffered = getattr(self._buffer, "text", "") + text
        self._buffer.text = "" if buffered.endswith("\n") else buffered
        if (message := _COLOURS.sub("", buffered).strip()) and buffered.endswith("\n"):
            self.write_record(_LEVELS.get(message.partition(":")[0], logging.INFO), message)
        return len(text)

    def write_record(self, level: int, message: str, exc_info: Any = None) -> None:
        """Write an object."""
        record = logging.LogRecord(self._logger, level, "", 0, message, None, exc_info)
        self.stream.write(self._formatter.format(record) + "\n")
        self.stream.flush()

    def isatty(self) -> bool:
        """Return that it is no terminal: nothing moves a cursor or sets a colour."""
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
