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
    """An early end of an attempt."""

    run_id: str
    attempt: PositiveInt
    at_s: float
    reason: str
    failure: Failure | None = None
    lost_device_s: NonNegativeFloat
    stalled_device_s: NonNegativeFloat
    startup_device_s: NonNegativeFloat
    waited_device_s: NonNegativeFloat

    def cost_device_s(self) -> float:
        """Device-seconds of what was held: nobody paid for the waiting, which may last a week."""
        return self.lost_device_s + self.stalled_device_s + self.startup_device_s


class Goodput(Record):
    """How training spent its device time."""

    run_ids: tuple[str, ...]
    num_open_attempts: NonNegativeInt
    """Not counted: no recorded end."""
    held_device_s: NonNegativeFloat
    by_phase: dict[Phase, NonNegativeFloat]
    """Device-seconds."""
    interruptions: tuple[Interruption, ...]
    num_commits: NonNegativeInt
    commit_s: NonNegativeFloat | None
    """Mean blocking of a rank by a commit."""
    failure_s: NonNegativeFloat | None
    """Mean wall time between interruptions."""
    optimal_commit_s: NonNegativeFloat | None
    """By Daly's formula."""
    step_s: NonNegativeFloat | None
    """Mean wall time of a kept step."""
    cost: NonNegativeFloat | None = None
    currency: str = ""
    evaluation_device_s: NonNegativeFloat = 0.0

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


def goodput_key(cluster: str) -> str:
    """Return the key of a cluster's goodput in the meeting place (`records.outer`): of its attempts that have ended."""
    return f"goodput/{cluster}.json"


class ProgramGoodput(Record):
    """Goodput of a program's runs."""

    program: str
    program_sha256: str
    together: Goodput
    by_activity: dict[str, Goodput]
