"""What a decision memo says, in the order in which a reader with two minutes asks: what, how sure, at what
cost, what would change our mind, what speaks against it; then every clause, and where each number comes from.

Plain values made of decisions; `memo_page.py` and `memo_markdown.py` write the same facts down.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from assay.base.units import number_of
from assay.evaluation.decision.words import (
    bound_text,
    chance_text,
    device_time_text,
    effect_text,
    interval_words,
)
from assay.records.campaign import CampaignRun
from assay.records.decision import BenchmarkEffect, Clause, Decision, GateResult, MoreEvidence, Recommendation
from assay.reporting.views.verdict import Tile, Tone, Verdict

UP = "../.."
"""From the memo's folder (runs/campaigns/NAME) to that of all runs: what sources are relative to."""

WORDS: dict[Recommendation, str] = {"scale": "Scale", "narrow": "Narrow", "stop": "Stop"}
TONES: dict[Recommendation, Tone] = {"scale": "good", "narrow": "open", "stop": "bad"}
_FIRST: dict[Recommendation, int] = {"scale": 0, "narrow": 1, "stop": 2}


@dataclass(frozen=True)
class Memo:
    """The decisions of one campaign, the good news first."""

    campaign: str
    question: str
    made_s: float
    """When the campaign was declared, seconds since the epoch."""
    decisions: Sequence[Decision]
    """The newest of each candidate."""
    undecided: Sequence[str]
    """Candidates without any decision yet."""
    stopped_by: str | None
    """Why the campaign ended before every candidate was decided."""
    budget_s: float

    def runs(self) -> list[CampaignRun]:
        """Every run behind the decisions, once."""
        return list({run.run_id: run for each in self.decisions for run in each.runs}.values())

    def spent_s(self) -> float:
        """Device time of all of them."""
        return sum(run.device_s for run in self.runs())


def ordered(decisions: Sequence[Decision]) -> list[Decision]:
    """What is to be scaled first; then as the file lists them."""
    return sorted(decisions, key=lambda each: _FIRST[each.recommendation])


def memo_verdict(memo: Memo) -> Verdict:
    """The recommendation on each candidate, in a sentence each."""
    if not memo.decisions:
        reason = memo.stopped_by or "no look has been taken yet"
        return Verdict("open", "not decided", f"There is no decision yet: {reason}.")
    words = [f"{WORDS[each.recommendation].lower()} {each.candidate}" for each in memo.decisions]
    left = [
        f"{name} is not decided: {memo.stopped_by or 'its looks are still to come'}." for name in memo.undecided
    ]
    return Verdict(
        TONES[memo.decisions[0].recommendation],
        " · ".join(words),
        " ".join([*(each.sentence for each in memo.decisions), *left]),
    )


def memo_tiles(memo: Memo) -> list[Tile]:
    """How large, how sure, how much: of the first candidate; then of the campaign."""
    if not memo.decisions:
        return [_cost_tile(memo)]
    lead = memo.decisions[0]
    clauses = lead.gates[0].clauses
    worth = next(clause for clause in clauses if clause.name == "worth")
    return [
        _gain_tile(lead),
        Tile(
            f"sure of {bound_text(lead.least_effect, lead.unit)} or more",
            chance_text(worth.value or 0.0),
            "probability, after shrinkage",
        ),
        Tile(
            "clauses that hold",
            f"{sum(clause.verdict == 'pass' for clause in clauses)} of {len(clauses)}",
            f"decided by {lead.decided_by}",
        ),
        Tile(
            "evidence",
            number_of(len(memo.runs()), "run"),
            f"{lead.look.num_seeds} paired seeds, {_look_words(lead)}",
        ),
        _cost_tile(memo),
    ]


def next_text(decision: Decision) -> str:
    """What comes next, and what it costs."""
    if decision.recommendation == "stop":
        return "nothing more is spent on it"
    if decision.recommendation == "scale":
        return "its recipe is the new known-good one; the plan prices the scaled run"
    return more_text(decision.cheapest) if decision.cheapest else "people's work; see the open clauses"


def more_text(more: MoreEvidence | None) -> str:
    """`2 more seeds of both arms (4 min of device time, 62% likely to pass)`; a dash for none."""
    if more is None:
        return "—"
    notes = [device_time_text(more.device_s)] if more.device_s else []
    notes += [f"{chance_text(more.chance)} likely to pass"] if more.chance is not None else []
    return f"{more.what} ({', '.join(notes)})" if notes else more.what


def mark_of(gate: GateResult, clause: Clause) -> str:
    """A tick, a cross or a circle; where a condition means stop, one that is not met is nothing to tick off."""
    if gate.then != "scale":
        return "✕" if clause.verdict == "pass" else "–"
    return {"pass": "✓", "fail": "✕", "undecided": "○"}[clause.verdict]


def gain_by_seed(decision: Decision) -> list[float]:
    """The primary effect in each seed."""
    primary = [each.by_seed for each in decision.effects if each.role == "primary"]
    return [sum(values) / len(primary) for values in zip(*primary, strict=True)]


EFFECT_COLUMNS = ("benchmark", "role", "baseline", "candidate", "effect", "could detect", "items")


def effect_row(effect: BenchmarkEffect) -> tuple[str, ...]:
    """What `EFFECT_COLUMNS` say of it."""
    clusters = "" if effect.num_clusters == effect.num_items else f" in {effect.num_clusters:,} clusters"
    return (
        effect.benchmark,
        effect.role,
        f"{effect.baseline_score:.4f}",
        f"{effect.candidate_score:.4f}",
        interval_words(effect.effect, effect.unit),
        "—" if effect.could_detect is None else effect_text(effect.could_detect, effect.unit, signed=False),
        f"{effect.num_items:,}{clusters}",
    )


def lists_of(decision: Decision) -> list[tuple[Literal["change", "risks", "dissent"], str, Sequence[str]]]:
    """The three questions that a doubter asks."""
    return [
        ("change", "What would change our mind", decision.would_change),
        ("risks", "Risks", (*decision.warnings, *decision.risks)),
        ("dissent", "Dissent", decision.dissent or ("None recorded; no number speaks against it.",)),
    ]


def link_to(path: str) -> str:
    """From the memo to a record: sources are relative to the folder of all runs, or absolute."""
    return path if path.startswith("/") else f"{UP}/{path}"


def _look_words(decision: Decision) -> str:
    if not decision.look.is_gate:
        return "an unscheduled look"
    if decision.num_looks == 1:
        return "the only look"
    return f"look {decision.look_number} of {decision.num_looks}"


def _gain_tile(decision: Decision) -> Tile:
    value, _, unit = effect_text(decision.effect.value, decision.unit).partition(" ")
    words = interval_words(decision.effect, decision.unit)
    interval = f" {words[words.index('[') :]}" if "[" in words else ""
    return Tile(f"gain of {decision.candidate}", value, f"{unit}{interval}")


def _cost_tile(memo: Memo) -> Tile:
    # The tile's name says the rest.
    spent, agreed = (
        device_time_text(each).removesuffix(" of device time") for each in (memo.spent_s(), memo.budget_s)
    )
    return Tile("device time so far", spent, f"of {agreed} agreed")
