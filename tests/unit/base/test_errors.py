"""What a disk without room is called, whoever met it."""

import errno

import pytest

from assay.base.errors import ConfigError, StoreError, StoreFullError, known_error, unwritten


class LibraryError(Exception):
    """As safetensors has one, which knows no numbers."""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "a.csv"),
            "a.csv: .*The disk is full: free some space",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "a file: .*The disk is full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "The quota is used up"),
        (LibraryError("I/O error: No space left on device (os error 28)"), "The disk is full"),
    ],
)
def test_no_room_is_an_error_that_a_person_can_act_on_and_that_says_try_again(error: Exception, message: str) -> None:
    found = known_error(error)
    assert isinstance(found, StoreFullError) and found.exit_code == 75
    with pytest.raises(StoreFullError, match=message):
        raise found


def test_what_is_known_stays_and_what_is_a_surprise_is_none() -> None:
    ours = ConfigError("x")
    assert known_error(ours) is ours
    assert known_error(ValueError("x")) is known_error(PermissionError(errno.EACCES, "Permission denied")) is None


def test_what_cannot_be_written_for_another_reason_has_its_own_cure() -> None:
    found = unwritten("a.csv", PermissionError(errno.EACCES, "Permission denied"), "Name another.")
    assert type(found) is StoreError
    assert str(found) == "a.csv: cannot be written: Permission denied. Name another."
