"""How often runs are interrupted and what that costs, as recorded attempts tell it."""

from typing import Any

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat

from assay.records.record import Record


class FailureRates(Record):
    """The rate of interrupts, with how well it is known: Gamma-distributed with this mean and shape."""

    runs: str
    """Pattern of the ids that were counted."""
    num_runs: NonNegativeInt
    num_attempts: NonNegativeInt
    device_hours: NonNegativeFloat
    """Held by these attempts."""
    by_outcome: dict[str, NonNegativeInt]
    """Interrupts: `failed`, `killed`, `preempted`."""
    stated_per_device_hour: PositiveFloat
    """What the program states; it counts as one interrupt seen."""
    per_device_hour: PositiveFloat
    """Mean of the posterior."""
    low: NonNegativeFloat
    """A twentieth lies below."""
    high: NonNegativeFloat
    shape: PositiveFloat
    """Shape of the Gamma distribution: interrupts that the rate is known from, the stated one included."""
    loss_hours: tuple[NonNegativeFloat, NonNegativeFloat] | None
    """Hours that a run loses at each: uniform, of the recorded mean and scatter; None: too few."""

    def num_interrupts(self) -> int:
        """All of them."""
        return sum(self.by_outcome.values())

    def changes(self) -> dict[str, Any]:
        """The patch on a program that makes the simulation use them."""
        found: dict[str, Any] = {
            "noise.interrupts_per_device_hour": self.per_device_hour,
            "noise.interrupts_known_from": self.shape,
        }
        if self.loss_hours is not None:
            found["noise.interrupt_loss_hours"] = list(self.loss_hours)
        return found

    def sentence(self) -> str:
        """Which rate, and from what."""
        kinds = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.by_outcome.items()) if count)
        losses = "as stated" if self.loss_hours is None else "{:.2g} to {:.2g} h each".format(*self.loss_hours)
        return (
            f"{self.per_device_hour:.2g} interrupts per device-hour (90%: {self.low:.2g} to {self.high:.2g}; "
            f"stated: {self.stated_per_device_hour:.2g}), from {self.num_interrupts()} in "
            f"{self.device_hours:,.4g} device-hours of {self.num_runs} recorded "
            f"run{'' if self.num_runs == 1 else 's'}{f' ({kinds})' if kinds else ''}; losses {losses}"
        )
