"""The errors that a person may see: each names the thing, what was expected, and the cure.

Exit code 2 means that we were asked wrongly (nothing has happened); 1 means that the work failed; 75
(EX_TEMPFAIL) that what we need did not answer: all commits are intact, and the same command goes on later.
"""


class AssayError(Exception):
    """Something that its reader can act on; shown without a traceback."""

    exit_code = 1


class ConfigError(AssayError):
    """A recipe, an option or an argument that cannot mean anything."""

    exit_code = 2


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


class FencedError(AssayError):
    """This attempt was replaced by a newer one and may not commit any more."""


class TrainingError(AssayError):
    """A run that cannot go on: a loss that is not finite, too many failed attempts."""


class LossNotFiniteError(TrainingError):
    """A step whose loss or gradient is not a number; it was not made."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, after what was under way has been committed; its text says how to go on."""
