"""The errors that a user may see. A message names the thing, what was expected, and the fix.

Exit code 2: the request is wrong, and nothing has happened. 1: the work failed. 75 (EX_TEMPFAIL): a store did not
respond or was full; all commits are intact, and the same command continues later.
"""

import errno
import os
import stat
from pathlib import Path


class AssayError(Exception):
    """An error that the user can act on; printed without a traceback."""

    exit_code = 1


class ConfigError(AssayError):
    """A recipe, an option or an argument is invalid."""

    exit_code = 2


class NotInstalledError(ConfigError):
    """This machine lacks a program or a package; another one may have it."""


class DataError(AssayError):
    """Input data is invalid: a missing column, a wrong type, an unreadable file."""

    exit_code = 2


class DamagedDataError(AssayError):
    """Bytes differ from their recorded digest: the file was changed, truncated or corrupted."""


class StoreError(AssayError):
    """A disk, an object store or a database cannot be reached or is full."""


class StoreAwayError(StoreError):
    """A store or a database does not respond; it may recover by itself."""

    exit_code = 75


class StoreFullError(StoreError):
    """The target of a write is full; somebody has to free space."""

    exit_code = 75


_NO_ROOM = {errno.ENOSPC: "The disk is full", errno.EDQUOT: "The quota is used up"}


def no_room(error: BaseException) -> str:
    """Return the fix for a write that found no space; empty for any other error.

    Libraries that raise their own errors are recognised by the system's message.
    """
    number = error.errno if isinstance(error, OSError) else None
    if number is None:
        number = next((item for item in _NO_ROOM if os.strerror(item) in str(error)), 0)
    phrase = _NO_ROOM.get(number)
    return f"{phrase}: free some space there and start again; what was finished is intact." if phrase else ""


def unwritten(path: object, error: BaseException, hint: str = "") -> StoreError:
    """Return the error for a failed write; `cure` is the fix for reasons other than a full disk."""
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    if full := no_room(error):
        return StoreFullError(f"{path}: cannot be written: {reason}. {full}")
    return StoreError(f"{path}: cannot be written: {reason}. {hint}".rstrip())


def known_error(error: BaseException) -> AssayError | None:
    """Return an error that the user can act on (one of ours, or a full disk); None for an unexpected error."""
    if isinstance(error, AssayError):
        return error
    where = error.filename if isinstance(error, OSError) else None
    return unwritten(where or "a file", error) if no_room(error) else None


_OF_PATHS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}


def path_error(error: BaseException) -> ConfigError | None:
    """Return a `ConfigError` for an `OSError` about a path; None for any other error."""
    if isinstance(error, OSError) and error.filename is not None and error.errno in _OF_PATHS:
        return ConfigError(f"{error.filename}: {error.strerror}. Check the path and its permissions.")
    return None


_IRREGULAR = {stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}


def regular(path: Path) -> Path:
    """Return the path; raises `DataError` for a pipe, device or socket, whose input may never end."""
    try:
        kind = _IRREGULAR.get(stat.S_IFMT(path.stat().st_mode))
    except (OSError, ValueError):
        return path  # the caller that opens it reports the error
    if kind is not None:
        raise DataError(f"{path}: {kind}, not a regular file. Write its contents to a file and name that file.")
    return path


class FencedError(AssayError):
    """A newer attempt has replaced this one, which may no longer commit."""


class TrainingError(AssayError):
    """A run cannot continue: its loss is not finite, or too many attempts failed."""


class LossNotFiniteError(TrainingError):
    """The loss or gradient of a step is not finite; the update was not applied."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, after the work in progress has been committed; the message says how to continue."""
