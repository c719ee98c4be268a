"""Where the device time of a run, of several, or of a program went, and what each interruption cost."""

from collections.abc import Mapping

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.records.failure import Failure
from assay.records.phase import STEP, Phase
from assay.records.record import Record

USEFUL = STEP
"""What was rolled back is in `lost` instead."""


def useful_share(seconds: Mapping[Phase, float]) -> float | None:
    """Goodput: device time in steps that were kept, over all that was held; None where nothing was."""
    held_s = sum(seconds.values())
    return sum(seconds.get(phase, 0.0) for phase in USEFUL) / held_s if held_s else None


class Interruption(Record):
    """An attempt that ended before the run did."""

    run_id: str
    attempt: PositiveInt
    at_s: float
    """Seconds since the Unix epoch."""
    reason: str
    """In words; `failure` has the facts."""
    failure: Failure | None = None
    """None if it was asked to stop."""
    lost_device_s: NonNegativeFloat
    """Work that was rolled back."""
    stalled_device_s: NonNegativeFloat
    startup_device_s: NonNegativeFloat
    """Device-seconds of starting the attempt that followed."""
    waited_device_s: NonNegativeFloat
    """Nobody held the devices between the two attempts, times the ranks of the second."""

    def cost_device_s(self) -> float:
        """Device-seconds of what was held: nobody paid for the waiting, which may last a week."""
        return self.lost_device_s + self.stalled_device_s + self.startup_device_s


class Goodput(Record):
    """The partition of the device time that training held, in device-seconds, and what follows from it."""

    run_ids: tuple[str, ...]
    num_open_attempts: NonNegativeInt
    """They still run, or nobody wrote down yet how they ended; what they hold is left out."""
    held_device_s: NonNegativeFloat
    by_phase: dict[Phase, NonNegativeFloat]
    """Sums to the held time."""
    interruptions: tuple[Interruption, ...]
    num_commits: NonNegativeInt
    commit_s: NonNegativeFloat | None
    """Seconds that a rank stood still for a commit, on average; None without commits."""
    failure_s: NonNegativeFloat | None
    """Mean time between interruptions while running (wall clock); None without one."""
    optimal_commit_s: NonNegativeFloat | None
    """Between commits, by Daly's formula; None where cost or rate are unknown."""
    step_s: NonNegativeFloat | None
    """Mean wall seconds of a kept step."""
    cost: NonNegativeFloat | None = None
    """The cost of the held time, at the prices of the day; None where a price is not known."""
    currency: str = ""
    evaluation_device_s: NonNegativeFloat = 0.0
    """Held by the evaluation of commits, which is no part of what training cost."""

    def useful_device_s(self) -> float:
        """Steps that were kept."""
        return sum(self.by_phase.get(phase, 0.0) for phase in USEFUL)

    def goodput(self) -> float:
        """Useful device time / held device time."""
        return useful_share(self.by_phase) or 0.0

    def ettr(self) -> float:
        """Effective training time ratio (Kokolis et al., HPCA 2025): useful / (held + waiting to restart)."""
        waited_s = sum(interruption.waited_device_s for interruption in self.interruptions)
        whole_s = self.held_device_s + waited_s
        return self.useful_device_s() / whole_s if whole_s else 0.0

    def interruptions_device_s(self) -> float:
        """What all interruptions cost; never more than was held."""
        return sum(interruption.cost_device_s() for interruption in self.interruptions)


class ProgramGoodput(Record):
    """The account of all runs of a program, and of each activity's."""

    program: str
    """Its name."""
    program_sha256: str
    together: Goodput
    by_activity: dict[str, Goodput]
    """Activities that have runs in the program, also where the ledger holds none of them yet; every run stands
    under one activity, so the held times sum to that of all."""
