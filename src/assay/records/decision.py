"""From evidence to what is done about it: gates judged clause by clause, a decision, and the recipe it makes.

    per-item results --> BenchmarkEffect --> Clause --> GateResult --> Decision --> KnownGood
                         candidate minus     one        all or any     scale |      the recipe that the
                         baseline            condition  of them        narrow |     next candidates
                                                                       stop         are patches on

Records hold codes, numbers and names. `reporting.views.statements` has the words, so these may change without a
record changing. Nothing here is edited: a decision made on more evidence is a new record.
"""

from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from assay.records.campaign import CampaignRun
from assay.records.evaluation import Estimate
from assay.records.record import Record
from assay.records.statement import Statement


class Look(Record):
    """A look at a comparison."""

    name: str
    """E.g. `G1`."""
    num_seeds: PositiveInt
    """Pairs."""
    is_gate: bool
    """Declared before the first run."""
    level: float
    """One-sided confidence required."""
    spent: NonNegativeFloat
    """Type I error."""
    spent_so_far: NonNegativeFloat


GateVerdict = Literal["pass", "fail", "undecided"]
"""`pass`: the condition is met by the evidence; `fail`: it is not met; `undecided`: more evidence could
tell."""

Recommendation = Literal["scale", "narrow", "stop"]
GateKind = Literal["scale", "stop", "rollback"]

LEAST_CHANCE = 0.005
"""A fix with a smaller probability does not count as one."""


class Source(Record):
    """A record, by path and digest."""

    path: str
    """Relative to the folder of runs, if inside it."""
    sha256: str


class MoreEvidence(Record):
    """An experiment and its cost."""

    what: Statement
    num_seeds: NonNegativeInt = 0
    """Per arm."""
    device_s: NonNegativeFloat | None = None
    probability: float | None = None
    """That the clause then passes."""
    decision_probability: float | None = None
    """That it leads to `scale` or `stop`."""
    instead: tuple[Statement, ...] = ()
    """What would help if no such experiment does."""

    def would_help(self) -> bool:
        """Return whether it may turn a clause or lead to a decision."""
        known = [chance for chance in (self.probability, self.decision_probability) if chance is not None]
        return not known or max(known) >= LEAST_CHANCE


class Clause(Record):
    """One condition of a gate."""

    name: str
    type: str
    verdict: GateVerdict
    reason: str
    """Code; the verdict if that says all."""
    value: float | None = None
    bound: float | None = None
    """Compared with `value`."""
    unit: str = ""
    values: dict[str, Any] = Field(default_factory=dict)
    """Further numbers and names behind the verdict."""
    benchmarks: tuple[str, ...] = ()
    evidence: tuple[Source, ...] = ()
    """Other records it uses."""
    is_thin: bool = False
    """It passes within noise."""
    more: MoreEvidence | None = None


class GateResult(Record):
    """A gate's verdict on a candidate."""

    gate: str
    then: GateKind
    """If it passes."""
    verdict: GateVerdict
    decided_by: str | None
    """The clause that decides it; null if all of its clauses do."""
    clauses: tuple[Clause, ...]
    more: MoreEvidence | None = None


class BenchmarkEffect(Record):
    """Candidate minus baseline on a benchmark; positive is better."""

    benchmark: str
    role: Literal["primary", "guardrail", "safety", "sealed", "other"]
    baseline_score: float
    candidate_score: float
    effect: Estimate
    se: NonNegativeFloat | None
    """Over seeds and items."""
    by_seed: tuple[float, ...]
    num_items: PositiveInt
    num_clusters: PositiveInt
    num_dropped: NonNegativeInt
    """Without score in some run."""
    could_detect: float | None
    """Smallest effect found with 80% power."""
    unit: str
    baseline_results: tuple[Source, ...]
    candidate_results: tuple[Source, ...]
    higher_is_better: bool = True
    where: dict[str, Any] = Field(default_factory=dict)
    """Only rows with these values; empty for all held-out rows, and for suites."""
    num_differing: NonNegativeInt = 0
    """Items with different scores in some seed."""
    item_degrees: NonNegativeFloat
    """Degrees of freedom of the items' variance."""


class Decision(Record):
    """The recommendation for one candidate."""

    campaign: str
    campaign_sha256: str
    """For the resolved file."""
    question: str
    candidate: str
    because: str
    """Why the candidate was tried."""
    patch: dict[str, Any]
    recommendation: Recommendation
    decided_by: str
    """Gate and clause."""
    can_decide: bool = True
    """False if no look of this design would decide."""
    is_final: bool
    """No look remains."""
    look: Look
    undeclared: tuple[str, ...] = ()
    """Checks that the campaign does not require."""
    look_number: NonNegativeInt
    """From 1; 0 if undeclared."""
    num_looks: PositiveInt
    effect: Estimate
    """The primary effect."""
    unit: str
    relative: float | None = None
    """The effect as a share of the baseline's score."""
    left_out_seeds: tuple[int, ...] = ()
    """For a trimmed mean."""
    least_effect: float
    """Smallest effect worth having."""
    least_effect_because: str = ""
    effects: tuple[BenchmarkEffect, ...]
    secondary: tuple[BenchmarkEffect, ...] = ()
    """Informative only."""
    accuracy_benchmark: str | None = None
    """The benchmark, of the two above, whose score is the share of right answers; on all rows if one is."""
    meaning: tuple[Statement, ...] = ()
    """The effect in other terms."""
    gates: tuple[GateResult, ...]
    cheapest: MoreEvidence | None
    """For `narrow`: cheapest experiment towards `scale`."""
    blocking: str | None
    """For `narrow`: failed or open clause."""
    runs: tuple[CampaignRun, ...]
    spent_s: NonNegativeFloat
    """For baseline and candidate."""
    next_s: NonNegativeFloat | None
    """For the recommended step."""
    next_wall_s: NonNegativeFloat | None = None
    budget_s: NonNegativeFloat
    owner: str = ""
    flips: dict[Recommendation, tuple[Statement, ...]] = Field(default_factory=dict)
    """Other recommendations, with the variations that lead to them."""
    num_variations: NonNegativeInt = 0
    """Varied assumptions, seeds and benchmarks."""
    turning_point: Statement | None = None
    """The gain at which the recommendation would change."""
    risks: tuple[Statement, ...] = ()
    dissent: tuple[Statement, ...] = ()
    """Evidence against it."""
    objections: tuple[str, ...] = ()
    """By people."""
    warnings: tuple[Statement, ...] = ()
    baseline_recipe_sha256: str
    candidate_recipe_sha256: str
    revision: PositiveInt = 1
    """Increments when files change but results do not."""

    def path(self) -> str:
        """Return its path in the campaign's folder, e.g. `decisions/faster-3.json`."""
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
    """A recipe that passed its gate; candidates of the next campaign are patches on it."""

    name: str
    recipe: dict[str, Any]
    """As written, without seeds; defaults are applied on use."""
    recipe_sha256: str
    """SHA-256 of `recipe`."""
    patch: dict[str, Any]
    """Patch on the parent recipe."""
    decision_sha256: str
    parent_recipe: dict[str, Any]
    """Recipe that a rollback restores."""
    lineage: tuple[Parent, ...]
    """From the first recipe to this one's parent."""
