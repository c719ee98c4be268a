"""From evidence to what is done about it: gates judged clause by clause, a decision, and the recipe it makes.

    per-item results --> BenchmarkEffect --> Clause --> GateResult --> Decision --> KnownGood
                         candidate minus     one        all or any     scale |      the recipe that the
                         baseline            condition  of them        narrow |     next candidates
                                                                       stop         are patches on

A clause carries its own numbers, so that a reader can check it, and names the records they come from. Nothing
here is edited: a decision made on more evidence is a new record.
"""

from typing import Any, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.records.campaign import CampaignRun
from assay.records.evaluation import Estimate
from assay.records.evidence import Look
from assay.records.record import Record

GateVerdict = Literal["pass", "fail", "undecided"]
"""`pass`: the condition is met by the evidence; `fail`: it is not met; `undecided`: more evidence could
tell."""

Recommendation = Literal["scale", "narrow", "stop"]
GateKind = Literal["scale", "stop", "rollback"]


class Source(Record):
    """Where a number comes from."""

    path: str
    """The path of the record's file; relative to the folder of all runs where it lies below it."""
    sha256: str
    """The record's digest."""


class MoreEvidence(Record):
    """What would turn a clause, and what that costs."""

    what: str
    """In words: `3 more seeds of baseline and candidate`."""
    num_seeds: NonNegativeInt = 0
    """Further seeds of each arm."""
    device_s: NonNegativeFloat | None = None
    """Device time of it, by what the runs so far took; None where it is people's work, or cannot be known."""
    probability: float | None = None
    """Probability that the clause then passes, given what is known now; None where it cannot be told."""
    decision_probability: float | None = None
    """Probability that it ends in scale or in stop; None where it is no new campaign."""


class Clause(Record):
    """One condition of a gate, with the number that was seen beside the one that was asked for."""

    name: str
    """`effect`, `guardrail: refusals`, ..."""
    type: str
    """The condition's type in the campaign's file."""
    verdict: GateVerdict
    requirement: str
    """What must hold: `the 95% lower end of the effect is above 0`."""
    seen: str
    """What was found, in words with its unit."""
    value: float | None = None
    """The number that was compared; None where there is none."""
    bound: float | None = None
    """What it was compared with."""
    reason: str
    """A sentence: why this verdict."""
    benchmarks: tuple[str, ...] = ()
    """Whose results are behind the number; see the decision's effects."""
    evidence: tuple[Source, ...] = ()
    """Other records behind it: a coverage matrix, a drill, a plan."""
    is_thin: bool = False
    """It holds by so little that ordinary luck would have turned it."""
    more: MoreEvidence | None = None


class GateResult(Record):
    """A gate on one candidate at one look."""

    gate: str
    then: GateKind
    """What is done if it passes."""
    verdict: GateVerdict
    reason: str
    clauses: tuple[Clause, ...]
    more: MoreEvidence | None = None
    """The cheapest evidence that could decide it; None where it is decided."""


class BenchmarkEffect(Record):
    """Candidate minus baseline on one benchmark, over paired seeds and items; of a loss, baseline minus
    candidate: an effect above 0 is a gain."""

    benchmark: str
    role: Literal["primary", "guardrail", "safety", "sealed", "other"]
    baseline_score: float
    candidate_score: float
    effect: Estimate
    se: NonNegativeFloat | None
    """Standard error of the effect over seeds and items together; None with one seed."""
    by_seed: tuple[float, ...]
    """The effect in each seed."""
    num_items: PositiveInt
    num_clusters: PositiveInt
    num_dropped: NonNegativeInt
    """Items that some run failed to score; they count for nobody."""
    could_detect: float | None
    """Smallest true effect that this many seeds and items find with 80% power; None with one seed."""
    unit: str
    baseline_results: tuple[Source, ...]
    """By seed."""
    candidate_results: tuple[Source, ...]
    higher_is_better: bool = True
    """False of a loss, e.g. bits per byte."""
    item_degrees: NonNegativeFloat
    """Degrees of freedom of the items' variance."""


class Decision(Record):
    """What to do with one candidate, by which rule, on which evidence."""

    campaign: str
    campaign_sha256: str
    """SHA-256 of the resolved campaign file: gates and thresholds as they were declared."""
    question: str
    candidate: str
    because: str
    """Why it was tried."""
    patch: dict[str, Any]
    recommendation: Recommendation
    sentence: str
    """The recommendation in a sentence, with its number."""
    decided_by: str
    """The gate, or the clause, that decided."""
    is_final: bool
    """False where a declared look is still to come."""
    look: Look
    undeclared: tuple[str, ...] = ()
    """What `scale` could have asked for, and was not declared to."""
    look_number: NonNegativeInt
    """Among the declared ones, from 1; 0 for a look that was not declared."""
    num_looks: PositiveInt
    """That were declared."""
    effect: Estimate
    """The primary effect."""
    unit: str
    least_effect: float
    """The smallest that is worth having."""
    least_effect_because: str = ""
    """Where that comes from; empty if the campaign does not say."""
    effects: tuple[BenchmarkEffect, ...]
    secondary: tuple[BenchmarkEffect, ...] = ()
    """What else the primary benchmarks' rows say (answers, ranking, likelihood); nothing was judged by it."""
    meaning: tuple[str, ...] = ()
    """What the gain means, in sentences: in wrong answers, in probability, beyond calibration."""
    gates: tuple[GateResult, ...]
    cheapest: MoreEvidence | None
    """For `narrow`: the cheapest experiment that could turn it into `scale`."""
    blocking: str | None
    """For `narrow`: the clause that failed, or is open."""
    runs: tuple[CampaignRun, ...]
    spent_s: NonNegativeFloat
    """Device time of baseline and candidate."""
    next_s: NonNegativeFloat | None
    """Device time of what is recommended next; None where it is not known here."""
    next_wall_s: NonNegativeFloat | None = None
    """From its beginning to its end, with the campaign's workers and one run after the other."""
    budget_s: NonNegativeFloat
    """Device time of the whole campaign."""
    owner: str = ""
    """Who answers for what comes next; empty where nobody is named."""
    would_change: tuple[str, ...]
    """What would change our mind."""
    risks: tuple[str, ...]
    dissent: tuple[str, ...]
    """Evidence against the recommendation, and what people said."""
    warnings: tuple[str, ...] = ()
    baseline_recipe_sha256: str
    candidate_recipe_sha256: str
    revision: PositiveInt = 1
    """Rises where the results are the same, and a file that a clause asks for (a coverage matrix, a drill, a
    forecast, a plan) was made or changed since."""

    def place(self) -> str:
        """Where it lies in its campaign's folder: `decisions/faster-3.json`."""
        kind = "" if self.look.is_gate else "-unscheduled"
        again = "" if self.revision == 1 else f"-revision-{self.revision}"
        return f"decisions/{self.candidate}-{self.look.num_seeds}{kind}{again}.json"


class Parent(Record):
    """One step of a recipe's lineage."""

    recipe_sha256: str
    candidate: str
    """The patch that led from it to the next; see `decision`."""
    decision_sha256: str


class KnownGood(Record):
    """A recipe that passed its gate: what the next campaign's candidates are patches on."""

    name: str
    recipe: dict[str, Any]
    """As given, without seeds: defaults are filled in when it is used."""
    recipe_sha256: str
    """SHA-256 of `recipe`."""
    patch: dict[str, Any]
    """What made it of its parent."""
    decision_sha256: str
    parent_recipe: dict[str, Any]
    """What a rollback goes back to."""
    lineage: tuple[Parent, ...]
    """From the first recipe to this one's parent."""
