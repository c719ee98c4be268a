"""A device that computed wrongly: who, where, when; and the error that takes it from a rank to its supervisor.

What is known is that two computations of one lane's gradient gave different bits. Who of them was wrong is a
vote of all ranks, so it is certain only where the vote was clear.
"""

from typing import Any

from pydantic import NonNegativeInt, PositiveInt

from assay.base.errors import AssayError
from assay.records.record import Record


class Suspect(Record):
    """A rank that computed a wrong result."""

    rank: NonNegativeInt
    node: str
    device: str
    step: PositiveInt
    lane: NonNegativeInt
    """Whose gradient differed."""
    is_certain: bool
    """False: no majority, so all disagreeing ranks are listed."""


class WrongArithmeticError(AssayError):
    """A device gave wrong numbers. Commits that are not verified cannot be trusted any more."""

    def __init__(self, message: str, suspects: tuple[Suspect, ...]) -> None:
        super().__init__(message)
        self.suspects = suspects

    def __reduce__(self) -> tuple[Any, ...]:
        """Survives the pipe to the supervisor with its suspects."""
        return type(self), (str(self), self.suspects)
