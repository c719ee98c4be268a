"""What a scan of attempts says about why they fail: the causes, how sure, and what cannot be told apart.

A *factor* is something that attempts differ in (a host, an image, a key of the recipe); a *region* is all
attempts that share the values of one to three factors. A cause is a region that fails more often than luck,
the likeness of attempts of one unit, the other factors and the hour account for."""

from typing import Literal

from pydantic import NonNegativeInt

from assay.records.record import Record

FailureVerdict = Literal["cause", "several", "unidentifiable", "nothing"]


class AdjustedRatio(Record):
    """How often attempts of a region fail against those outside that are alike in something."""

    within: tuple[str, ...]
    """What the two are alike in: factors, and `time`; empty where all are compared with all."""
    ratio: float
    """Mantel & Haenszel's ratio of failure rates."""
    low: float
    """The lower end of its 95% interval, which knows that attempts of one unit fail alike."""
    high: float


class FailureCause(Record):
    """A region whose attempts fail too often."""

    factors: dict[str, str]
    """Factor -> its value; all of them together are the region."""
    is_confirmed: bool
    """Whether the scan alone accounts for it at 5%; the others are the next to suspect, in order."""
    p_value: float
    """How often the whole scan finds a region this striking where nothing is at fault."""
    attempts: NonNegativeInt
    failures: NonNegativeInt
    units: NonNegativeInt
    """Independent ones among its attempts."""
    rate: float
    """Failures per attempt, or per unit of `--exposure`."""
    rate_low: float
    """The lower end of the 95% interval of the rate."""
    rate_high: float
    elsewhere_rate: float
    """The rate of all attempts outside."""
    adjusted_ratio: float | None
    """Its rate against that of attempts outside which are alike in the other factors and in time, as far as
    there are such; None where there are none."""
    adjusted_low: float | None
    adjusted_high: float | None
    adjustments: tuple[AdjustedRatio, ...]
    """The same ratio step by step: unadjusted, within the other factors, within time too."""
    share_of_excess: float
    """The part of the failures that are too many for which this region accounts."""
    evidence: float
    """Log likelihood ratio of the region having its own rate, over that of none having."""
    ties: tuple[dict[str, str], ...]
    """Other regions that these attempts do not tell from this one; those of the very same attempts come
    first."""
    is_inseparable: bool
    """Whether one of the ties never varies apart from it."""
    lost_device_hours: float | None
    """Held by its failed attempts, beyond what the rate elsewhere would have cost; None where none are on
    record."""
    next: str
    """What to do, with its price in device-hours where they are on record."""


class RuledOut(Record):
    """A region that fails often, and why it is no cause."""

    factors: dict[str, str]
    attempts: NonNegativeInt
    failures: NonNegativeInt
    rate: float
    elsewhere_rate: float
    adjustments: tuple[AdjustedRatio, ...]
    """Its ratio step by step."""
    because: str


class FailureDiagnosis(Record):
    """Why attempts fail."""

    verdict: FailureVerdict
    """`unidentifiable`: something is at fault, and these attempts cannot say what."""
    because: str
    """The verdict in a sentence."""
    p_value: float | None
    """How often the scan finds something this striking where nothing is at fault; None where it had nothing
    to scan."""
    attempts: NonNegativeInt
    """Those that were scanned."""
    failures: NonNegativeInt
    rate: float
    """Failures per attempt, or per unit of `--exposure`."""
    baseline_rate: float | None
    """Before, in the baseline's window; None where no window is asked about."""
    units: NonNegativeInt
    """Independent ones; of a table without a unit, its rows."""
    unit_correlation: float
    """How alike attempts of one unit end: 0 is not at all, 1 all alike."""
    causes: tuple[FailureCause, ...]
    """Confirmed ones first."""
    ruled_out: tuple[RuledOut, ...]
    """Regions that stood out until they were compared with attempts alike in other factors and in time."""
    left_out: dict[str, str]
    """Factor that was not scanned -> why."""
    sources: dict[str, str]
    """What was read -> SHA-256 of its bytes; of a ledger, of its attempts."""
