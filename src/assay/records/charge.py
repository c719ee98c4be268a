"""What holds devices while it is made says for how long: what its project is charged."""

from typing import ClassVar

from pydantic import NonNegativeFloat

from assay.records.record import Record


class Charged(Record):
    """The fields of such a record; each has a kind of its own."""

    kind: ClassVar[str] = ""

    began_s: float = 0.0
    ended_s: float = 0.0
    device_s: NonNegativeFloat = 0.0

    def charge(self) -> dict[str, float]:
        """The three, for a record of the same."""
        return {"began_s": self.began_s, "ended_s": self.ended_s, "device_s": self.device_s}
