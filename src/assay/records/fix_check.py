"""Whether attempts fail less often since something was mended, valid however often it is asked."""

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from assay.records.record import Record


class FixCheck(Record):
    """Attempts after a moment against those before it."""

    verdict: Literal["fixed", "worse", "undecided"]
    because: str
    """The verdict in a sentence."""
    decided_after: PositiveInt | None
    """Attempts after the moment, when it was first decided; None while it is not."""
    e_value: float
    """Evidence that the rate fell below what it may have been at least; from 20 on it is fixed."""
    worse_e_value: float
    """Likewise, that it rose above what it may have been at most."""
    baseline_rate: float | None
    """Failures per attempt before; None where there were no attempts."""
    baseline_low: float
    """The least that the old rate may have been (95%), units that fail alike counted for what they weigh."""
    baseline_high: float
    """The most that it may have been."""
    baseline_attempts: NonNegativeInt
    rate: float | None
    """Failures per attempt since; None where there were no attempts."""
    attempts: NonNegativeInt
    failures: NonNegativeInt
    more_attempts: NonNegativeInt | None
    """So many more without a failure would decide that it is fixed; 0 once it is decided, None where no
    number would."""
    unit_correlation: float
    """How alike attempts of one unit end."""
    sources: dict[str, str]
    """What was read -> SHA-256 of its bytes; of a ledger, of its attempts."""
