"""What entries of several logs share: a retried request, device time, and how a log tells its entries apart."""

from typing import Any, ClassVar, Literal, get_args

from pydantic import NonNegativeFloat, PositiveInt

from assay.records.record import Record


class Claimed(Record):
    """A retried request returned an existing resource; each resource's log has an entry of its own."""

    kind: ClassVar[str] = ""

    type: Literal["claimed"] = "claimed"
    at_s: float
    retry_count: PositiveInt
    """Number of the retry. Its response may be lost too, and a later retry of it gets the same response."""


class Charged(Record):
    """Work that held devices; its project is charged for the time. Each such record has a kind of its own."""

    kind: ClassVar[str] = ""

    began_s: float = 0.0
    ended_s: float = 0.0
    device_s: NonNegativeFloat = 0.0

    def charge(self) -> dict[str, float]:
        """Return the three fields, for another record of the same work."""
        return {"began_s": self.began_s, "ended_s": self.ended_s, "device_s": self.device_s}


def classes_by_type(entry: object) -> dict[str, type[Any]]:
    """Return the classes of a union of log entries by their `type`, which a log stores to tell them apart."""
    return {entry_class.model_fields["type"].default: entry_class for entry_class in get_args(entry)}
