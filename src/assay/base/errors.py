"""The errors that a person may see: each names the thing, what was expected, and the cure.

Exit code 2 means that we were asked wrongly (nothing has happened); 1 means that the work failed; 75
(EX_TEMPFAIL) that what we need did not answer, or had no room: all commits are intact, and the same command
goes on later.
"""

import errno
import os
import stat
from pathlib import Path


class AssayError(Exception):
    """Something that its reader can act on; shown without a traceback."""

    exit_code = 1


class ConfigError(AssayError):
    """A recipe, an option or an argument that cannot mean anything."""

    exit_code = 2


class NotInstalledError(ConfigError):
    """A program or a package that this machine lacks; another machine may have it."""


class DataError(AssayError):
    """Input data that is not what it must be: a missing column, a wrong type, an unreadable file."""

    exit_code = 2


class DamagedDataError(AssayError):
    """Bytes that are not those which were indexed: a file changed, truncated or rotted since."""


class StoreError(AssayError):
    """A disk, an object store or a database that cannot be reached, or is full."""


class StoreAwayError(StoreError):
    """A store or a database that does not answer for now, and may again by itself."""

    exit_code = 75


class StoreFullError(StoreError):
    """No room where something was to be written: nothing mends it but somebody who makes some."""

    exit_code = 75


_NO_ROOM = {errno.ENOSPC: "The disk is full", errno.EDQUOT: "The quota is used up"}


def no_room(error: BaseException) -> str:
    """The cure of a write that found no room; empty of any other error. Libraries that raise errors of their
    own are known by the system's words."""
    number = error.errno if isinstance(error, OSError) else None
    if number is None:
        number = next((each for each in _NO_ROOM if os.strerror(each) in str(error)), 0)
    said = _NO_ROOM.get(number)
    return f"{said}: free some space there and start again; what was finished is intact." if said else ""


def unwritten(path: object, error: BaseException, cure: str = "") -> StoreError:
    """What to raise of something that could not be written; `cure` is for other reasons than a want of room."""
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    if full := no_room(error):
        return StoreFullError(f"{path}: cannot be written: {reason}. {full}")
    return StoreError(f"{path}: cannot be written: {reason}. {cure}".rstrip())


def known_error(error: BaseException) -> AssayError | None:
    """An error that its reader can act on, be it one of ours or of a disk without room; None of a surprise."""
    if isinstance(error, AssayError):
        return error
    where = error.filename if isinstance(error, OSError) else None
    return unwritten(where or "a file", error) if no_room(error) else None


_OF_PATHS = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
}


def path_error(error: BaseException) -> ConfigError | None:
    """What is wrong with a path that somebody named, as far as the system says; None of all else."""
    if isinstance(error, OSError) and error.filename is not None and error.errno in _OF_PATHS:
        return ConfigError(f"{error.filename}: {error.strerror}. Check the path and its permissions.")
    return None


_IRREGULAR = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def regular(path: Path) -> Path:
    """The path of an input, unless it is a pipe, device or socket, which may never end: a `DataError`."""
    try:
        kind = _IRREGULAR.get(stat.S_IFMT(path.stat().st_mode))
    except (OSError, ValueError):
        return path  # whoever opens it says what is wrong
    if kind is not None:
        raise DataError(f"{path}: {kind}, not a regular file. Write what it gives to a file, and name that.")
    return path


class FencedError(AssayError):
    """This attempt was replaced by a newer one and may not commit any more."""


class TrainingError(AssayError):
    """A run that cannot go on: a loss that is not finite, too many failed attempts."""


class LossNotFiniteError(TrainingError):
    """A step whose loss or gradient is not a number; it was not made."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, after what was under way has been committed; its text says how to go on."""
