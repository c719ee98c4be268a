"""The content of a decision memo: recommendation, certainty, cost, risks, clauses and sources. Plain values
derived from decisions; `memo_page.py` and `memo_markdown.py` render them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal

from assay.base.units import duration_text, number_of
from assay.decision.candidate import STAGE
from assay.decision.sentences import (
    NO_EVIDENCE,
    bound_text,
    chance_text,
    chances_text,
    detectable_text,
    device_time_text,
    effect_text,
    interval_words,
    would_help,
)
from assay.records.campaign import CampaignRun
from assay.records.decision import BenchmarkEffect, Clause, Decision, GateResult, MoreEvidence, Recommendation
from assay.reporting.document import SIGNS, Fact, Mark, Tone, Verdict, worst

WORDS: dict[Recommendation, str] = {"scale": "Scale", "narrow": "Narrow", "stop": "Stop"}
TONES: dict[Recommendation, Tone] = {"scale": "good", "narrow": "open", "stop": "ended"}
_FIRST: dict[Recommendation, int] = {"scale": 0, "narrow": 1, "stop": 2}


@dataclass(frozen=True)
class Memo:
    """The decisions of one campaign, `scale` first."""

    campaign: str
    question: str
    declared_s: float
    """When the campaign was declared."""
    decisions: Sequence[Decision]
    """The latest of each candidate."""
    undecided: Sequence[str]
    """Candidates without a decision."""
    stopped_by: str | None
    """Why the campaign ended early."""
    budget_s: float
    cost: str = ""
    """Total cost, such as `12.40 EUR`; empty if a price is not known."""
    other_stages_s: float = 0.0
    """Device seconds of pipeline stages that are not compared."""
    evaluation_s: float = 0.0
    """Device seconds of evaluation, not part of the budget."""
    records: Mapping[str, str] = field(default_factory=dict)
    """Record texts by path, embedded in the page so that it can be mailed."""

    def runs(self) -> list[CampaignRun]:
        """Return every run behind the decisions, once."""
        return list({run.run_id: run for decision in self.decisions for run in decision.runs}.values())

    def spent_s(self) -> float:
        """Return the device seconds of training, including other stages."""
        return sum(run.device_s for run in self.runs()) + self.other_stages_s


def ordered(decisions: Sequence[Decision]) -> list[Decision]:
    """Sort decisions by recommendation: scale, narrow, stop."""
    return sorted(decisions, key=lambda decision: _FIRST[decision.recommendation])


def memo_verdict(memo: Memo) -> Verdict:
    """Return the recommendation on each candidate."""
    if not memo.decisions:
        reason = memo.stopped_by or "no look has been taken yet"
        return Verdict("open", "not decided", f"There is no decision yet: {reason}.")
    words = [f"{WORDS[decision.recommendation].lower()} {decision.candidate}" for decision in memo.decisions]
    left = [f"{name} is not decided: {memo.stopped_by or 'its looks are pending'}." for name in memo.undecided]
    runs = memo.runs()
    not_proved = [run for run in runs if run.audit_verdict != "pass"]
    warned = [run for run in runs if run.warnings]
    marks = (
        Mark("rows", "bad" if not_proved else "good", f"{len(runs) - len(not_proved)} of {len(runs)} runs proved"),
        Mark("models", *_models_word(runs)),
    )
    tone = TONES[memo.decisions[0].recommendation]
    return Verdict(
        worst((tone, "open")) if warned else tone,
        " · ".join(words),
        " ".join(
            [*(_decision_text(decision, is_alone=len(memo.decisions) == 1) for decision in memo.decisions), *left]
        ),
        marks,
    )


def _decision_text(decision: Decision, *, is_alone: bool) -> str:
    """Return the decision's sentence without the words that the verdict repeats."""
    sentence = decision.sentence.removeprefix(f"{WORDS[decision.recommendation]} {decision.candidate}: ")
    return f"{sentence[:1].upper()}{sentence[1:]}" if is_alone else f"{decision.candidate}: {sentence}"


def _models_word(runs: Sequence[CampaignRun]) -> tuple[Tone, str]:
    if warned := [run for run in runs if run.warnings]:
        return "bad", f"{len(warned)} of {len(runs)} warned of"
    return "good", "no warning"


def model_text(run: CampaignRun) -> str:
    """Return the warnings of a run."""
    return " ".join(run.warnings) or "no warning"


def models_text(runs: Sequence[CampaignRun]) -> str:
    """Return the warnings of several runs; "no warning" if none has any."""
    texts = dict.fromkeys(map(model_text, runs))
    if len(texts) > 1:
        texts.pop("no warning", None)
    return " ".join(texts)


def memo_tiles(memo: Memo) -> list[Fact]:
    """Return effect, certainty and evidence of the first candidate, and the campaign's cost."""
    if not memo.decisions:
        return [_cost_tile(memo)]
    first = memo.decisions[0]
    clauses = first.gates[0].clauses
    declared = [clause for clause in clauses if clause.name not in first.undeclared]
    worth = next(clause for clause in clauses if clause.name == "worth")
    return [
        _gain_tile(first),
        Fact(
            f"sure of {bound_text(first.least_effect, first.unit)} or more",
            chance_text(worth.value or 0.0),
            "probability, after shrinkage",
        ),
        Fact(
            "clauses that hold",
            f"{sum(clause.verdict == 'pass' for clause in declared)} of {len(declared)}",
            f"decided by {first.decided_by}{_unasked_count(first)}",
        ),
        Fact(
            "evidence",
            number_of(len(memo.runs()), "run"),
            f"{number_of(first.look.num_seeds, 'paired seed')}, {look_words(first)}",
        ),
        _cost_tile(memo),
    ]


NEXT_COLUMNS = ("candidate", "next", "who", "instead", "cost so far", "decision")


def next_text(decision: Decision) -> str:
    """Return the next step with its cost and duration."""
    if decision.recommendation == "stop":
        return "no further runs"
    if decision.recommendation == "scale" and STAGE in decision.patch:
        return "it stays in the pipeline"
    if decision.recommendation == "scale":
        known = "its recipe is the new known-good one"
        if "plan" in decision.undeclared:
            return f"{known}; cost and date of scaling are unknown because the campaign requires no plan"
        plan_texts = [clause.seen for gate in decision.gates for clause in gate.clauses if clause.type == "plan"]
        return f"{known}; the plan for scaling it: {plan_texts[0]}" if plan_texts else known
    if decision.cheapest is None:
        return "work for people; see the open clauses"
    wall_s = decision.next_wall_s
    done = "" if wall_s is None else f", done {duration_text(wall_s)} after the start"
    return f"its cheapest fix{_price_text(decision.cheapest)}{done}"


def who_text(decision: Decision) -> str:
    """Return who is responsible."""
    return decision.owner or "no owner is set (`owner:` in the campaign file)"


def instead_text(decision: Decision) -> str:
    """Return the alternative to the recommendation, and its cost."""
    if decision.recommendation == "scale":
        gain = interval_words(decision.effect, decision.unit)
        return f"keep the baseline: no cost, but no gain of {gain}"
    if decision.recommendation == "narrow":
        return "stop here: keep the baseline and leave the question open"
    more = decision.gates[0].more
    if more is None or not would_help(more):
        return "none that the evidence supports"
    return f"continue against the rule: {more_text(more)}"


def least_text(decision: Decision) -> str:
    """Return the smallest effect worth having, and why."""
    least = bound_text(decision.least_effect, decision.unit)
    if decision.least_effect_because:
        return f"A gain of {least} was declared worth having: {decision.least_effect_because}"
    return (
        f"A gain of {least} was declared worth having; the campaign gives no reason "
        "(least_effect_because: in the campaign's file)."
    )


def more_text(more: MoreEvidence | None) -> str:
    """`2 more seeds of both arms (4 min of device time, 62% to pass)`, or a dash if nothing would help."""
    if more is None or not would_help(more):
        return "—"
    return f"{more.what}{_price_text(more)}"


def _price_text(more: MoreEvidence) -> str:
    notes = [*([device_time_text(more.device_s)] if more.device_s else []), *chances_text(more)]
    return f" ({', '.join(notes)})" if notes else ""


def fix_text(decision: Decision, gate: GateResult, clause: Clause) -> str:
    """Return the evidence that would decide a clause, or a reference if it was named before."""
    text = more_text(clause.more)
    if clause.more is None or text == "—":
        return text
    if decision.cheapest is not None and clause.more.what == decision.cheapest.what:
        return "the cheapest fix"
    first = next(other for other in gate.clauses if other.more is not None and other.more.what == clause.more.what)
    if first != clause:
        return f"as {first.name}"
    alone = decision.cheapest is not None and decision.cheapest.what.startswith(NO_EVIDENCE)
    return f"for this clause only; others stay open: {text}" if alone else text


def gate_text(gate: GateResult) -> str:
    """Return the gate's result in words. A stop gate that passes is `met`."""
    if gate.then == "scale":
        return {"pass": "holds", "fail": "does not hold", "undecided": "open"}[gate.verdict]
    return {"pass": f"met, so {gate.then}", "fail": "not met", "undecided": "not met so far"}[gate.verdict]


def unasked_text(decision: Decision, gate: GateResult) -> str:
    """Return the clauses that the gate could have required but did not; empty if none."""
    if gate.then != "scale" or not decision.undeclared:
        return ""
    lines = [clause.name for clause in gate.clauses if clause.name in decision.undeclared]
    others = [name for name in decision.undeclared if name not in lines]
    named = ", ".join([*(f"{name} (–)" for name in lines), *others])
    return f"Not asked, so neither for it nor against it: {named}."


def clause_tone(decision: Decision, gate: GateResult, clause: Clause) -> Tone:
    """Return the tone of a clause. Undeclared clauses and unmet stop conditions are neutral."""
    if clause.name in decision.undeclared:
        return "open"
    if gate.then != "scale" and clause.verdict != "undecided":
        return "ended" if clause.verdict == "pass" else "good"
    return {"pass": "good", "fail": "bad", "undecided": "open"}[clause.verdict]  # type: ignore[return-value]


def mark_of(decision: Decision, gate: GateResult, clause: Clause) -> str:
    """Return ✓ passes, ✕ fails, ○ open, ■ reason to stop, or a dash if not applicable."""
    if clause.name in decision.undeclared or (gate.then != "scale" and clause.verdict == "fail"):
        return "–"
    return SIGNS[clause_tone(decision, gate, clause)]


def gain_by_seed(decision: Decision) -> list[float]:
    """Return the primary effect of each seed."""
    primary = [effect.by_seed for effect in decision.effects if effect.role == "primary"]
    return [sum(values) / len(primary) for values in zip(*primary, strict=True)]


EFFECT_COLUMNS = ("benchmark", "role", "baseline", "candidate", "effect", "relative", "could detect", "items")


def all_effects(decision: Decision) -> list[BenchmarkEffect]:
    """Return the judged and the informative effects."""
    return [*decision.effects, *decision.secondary]


def effect_row(effect: BenchmarkEffect) -> tuple[str, ...]:
    """Return the cells for `EFFECT_COLUMNS`."""
    clusters = "" if effect.num_clusters == effect.num_items else f" in {number_of(effect.num_clusters, 'cluster')}"
    return (
        effect.benchmark if effect.higher_is_better else f"{effect.benchmark} (less is better)",
        effect.role,
        f"{effect.baseline_score:.4f}",
        f"{effect.candidate_score:.4f}",
        interval_words(effect.effect, effect.unit),
        f"{100 * effect.effect.value / abs(effect.baseline_score):+.1f}%" if effect.baseline_score else "—",
        "—" if effect.could_detect is None else detectable_text(effect.could_detect, effect.unit),
        f"{effect.num_items:,}{clusters}",
    )


def effects_note(decision: Decision) -> str:
    """Explain *could detect* and clustered items."""
    detects = (
        " Could detect: the smallest true gain that one look at 95% sees 80% of the time. To be scaled a gain "
        "must also be worth having and reproducible, so it must be larger."
    )
    if all(effect.num_clusters == effect.num_items for effect in decision.effects):
        return detects
    shared = " Items that come in clusters (a file, a person) are correlated: a cluster counts as one draw."
    return detects + shared


def lists_of(decision: Decision) -> list[tuple[Literal["change", "risks", "dissent"], str, Sequence[str]]]:
    """Return what would change the recommendation, the risks and the dissent."""
    return [
        ("change", "What would change the recommendation", decision.would_change),
        ("risks", "Risks", (*decision.warnings, *decision.risks)),
        ("dissent", "Dissent", decision.dissent or (_no_dissent(decision),)),
    ]


def _no_dissent(decision: Decision) -> str:
    """Return that no number contradicts the decision, if no warning and no variation does."""
    flips = any(text.startswith("It would be") for text in decision.would_change)
    if decision.recommendation == "narrow" or decision.warnings or flips:
        return "None recorded."
    return "None recorded; no number contradicts it."


def record_paths(memo: Memo) -> list[str]:
    """Return the paths of all records that the memo cites, relative to the folder of runs or absolute."""
    found = [f"{home_of(memo.campaign)}/campaign.json"]
    for decision in memo.decisions:
        found.append(decision_path(decision))
        if decision.recommendation == "scale":
            found.append(known_good_of(decision))
        found += [run_record(run) for run in decision.runs]
        found += [source.path for gate in decision.gates for clause in gate.clauses for source in clause.evidence]
        found += [
            source.path
            for effect in decision.effects
            for source in (*effect.baseline_results, *effect.candidate_results)
        ]
    return list(dict.fromkeys(found))


def home_of(campaign: str) -> str:
    """Return a campaign's folder."""
    return f"campaigns/{campaign}"


def decision_path(decision: Decision) -> str:
    """Return the path of a decision's record."""
    return f"{home_of(decision.campaign)}/{decision.path()}"


def known_good_of(decision: Decision) -> str:
    """Return the path of the recipe that a decision to scale wrote."""
    return f"{home_of(decision.campaign)}/{decision.candidate}.known_good.json"


def run_record(run: CampaignRun) -> str:
    """Return the path of a run's record."""
    return f"{run.run_id}/run.json"


def anchor_of(path: str) -> str:
    """Return the HTML anchor of an embedded record."""
    return f"record-{sha256(path.encode()).hexdigest()[:12]}"


def look_words(decision: Decision) -> str:
    """Return which of the declared looks a decision was made at."""
    if not decision.look.is_gate:
        return "an unscheduled look"
    if decision.num_looks == 1:
        return "the only look"
    return f"look {decision.look_number} of {decision.num_looks}"


def _gain_tile(decision: Decision) -> Fact:
    value, _, unit = effect_text(decision.effect.value, decision.unit).partition(" ")
    words = interval_words(decision.effect, decision.unit)
    interval = f" {words[words.index('[') :]}" if "[" in words else ""
    return Fact(f"gain of {decision.candidate}", value, f"{unit}{interval}")


def cost_note(memo: Memo) -> str:
    """Explain which runs the costs cover."""
    evaluation = _evaluation_text(memo)
    if any(STAGE in decision.patch for decision in memo.decisions):
        stage_costs = f"'assay runs show {memo.campaign}' has each stage's cost"
        return f"That is of all stages{_others_text(memo)}; {stage_costs}{evaluation}."
    return f"Candidates share the baseline's runs{evaluation}."


def _others_text(memo: Memo) -> str:
    others = device_time_text(memo.other_stages_s).removesuffix(" of device time")
    return f", {others} of it for stages that are not compared" if memo.other_stages_s else ""


def _unasked_count(decision: Decision) -> str:
    """Return how many clauses were not declared."""
    count = len(decision.undeclared)
    return f"; {count} more {'was' if count == 1 else 'were'} not declared" if count else ""


def _cost_tile(memo: Memo) -> Fact:
    # The tile's name says the rest.
    spent, agreed = (
        device_time_text(seconds).removesuffix(" of device time") for seconds in (memo.spent_s(), memo.budget_s)
    )
    cost = f"; {memo.cost}" if memo.cost else ""
    return Fact(
        "device time of training",
        spent,
        f"of {agreed} agreed{cost}{_others_text(memo)}{_evaluation_text(memo)}",
    )


def _evaluation_text(memo: Memo) -> str:
    return f"; evaluation, apart: {device_time_text(memo.evaluation_s)}" if memo.evaluation_s else ""
