r"""The memo of a campaign as a document: recommendation, certainty, cost, risks, clauses and sources.

    Memo (facts) --> memo_document --> page with its records, terminal, Markdown
                 \-> memo_summary  --> its first page alone, as a PDF of one sheet

Wrong answers lead, because every reader knows what they are; the unit that is decided on follows. Numbers link to
their records, which the page embeds so that it can be mailed.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

from assay.base.clock import utc_text
from assay.base.units import duration_text, number_of
from assay.decision.candidate import NOT_OF_A_RECIPE, STAGE
from assay.records.campaign import ROWS_NOT_OBSERVED, CampaignRun
from assay.records.decision import LEAST_CHANCE, BenchmarkEffect, Clause, Decision, GateResult, Recommendation
from assay.records.evaluation import Estimate
from assay.reporting.charts.evidence_plots import ForestRow, forest_plot, is_worse
from assay.reporting.document import (
    SIGNS,
    Block,
    Cell,
    Code,
    Document,
    Fact,
    FactList,
    Figure,
    Fold,
    Listing,
    Mark,
    Paragraph,
    Section,
    Table,
    Text,
    TitledTable,
    Tone,
    Verdict,
    figure,
    worst,
)
from assay.reporting.views.statements import (
    accuracy_effect,
    because_text,
    bound_text,
    chance_text,
    deciding_clause,
    deciding_gate,
    detectable_text,
    device_time_text,
    dissent_texts,
    effect_text,
    error_rate_text,
    error_rates,
    fewer_text,
    fragility_text,
    gate_reason_text,
    interval_words,
    more_text,
    price_text,
    reason_text,
    requirement_text,
    seen_text,
    statement_texts,
    would_change_texts,
)
from assay.reporting.views.warnings import run_warning_text

TONES: dict[Recommendation, Tone] = {"scale": "good", "narrow": "open", "stop": "ended"}


@dataclass(frozen=True)
class Memo:
    """The facts of a memo: the decisions of one campaign, `scale` first, and what they cost."""

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
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Addresses of records by path, for a page that does not embed them."""
    looks: Sequence[Decision] = ()
    """The decisions at all looks, by candidate and look."""

    def runs(self) -> list[CampaignRun]:
        """Return every run behind the decisions, once."""
        return list({run.run_id: run for decision in self.decisions for run in decision.runs}.values())

    def spent_s(self) -> float:
        """Return the device seconds of training, including other stages."""
        return sum(run.device_s for run in self.runs()) + self.other_stages_s


def memo_document(memo: Memo) -> Document:
    """Return the memo: its first page, then what it rests on."""
    summary = memo_summary(memo)
    found = [_candidate_section(memo, decision) for decision in memo.decisions]
    if memo.decisions:
        found.insert(0, Section("What was found", list(_figures(memo)), pages_only=True, starts_page=True))
    return replace(summary, sections=[*summary.sections, *found, *_sources(memo)])


def memo_summary(memo: Memo) -> Document:
    """Return the first page: verdict, effect, cost, and for each candidate its risk, next step and owner."""
    undecided = [
        FactList(
            [Fact("next step", memo.stopped_by or "its looks are pending")], title=f"Candidate {name}: not decided"
        )
        for name in memo.undecided
    ]
    blocks = [*(_summary_facts(memo, decision) for decision in memo.decisions), *undecided]
    return Document(
        name="memo",
        title=memo.question,
        kind="decision memo",
        subtitle=f"campaign {memo.campaign}, declared {utc_text(memo.declared_s)}",
        verdict=memo_verdict(memo),
        tiles=memo_tiles(memo),
        sections=[Section("Candidate by candidate", blocks)] if blocks else [],
        footer=f"Every number follows from a record of campaign {memo.campaign}. 'assay decide again {memo.campaign}' "
        "judges everything again from the per-item results, and refuses a record that does not follow from them.",
    )


# The first page


def memo_verdict(memo: Memo) -> Verdict:
    """Return the recommendation on each candidate."""
    if not memo.decisions:
        reason = memo.stopped_by or "no look has been taken yet"
        return Verdict("open", "not decided", f"There is no decision yet: {reason}.")
    words = [f"candidate {decision.candidate}: {_verb(decision)}" for decision in memo.decisions]
    left = [f"{name} is not decided: {memo.stopped_by or 'its looks are pending'}." for name in memo.undecided]
    runs = memo.runs()
    proved = sum(run.audit_verdict == "pass" for run in runs)
    is_open = all(run.audit_verdict in ("pass", ROWS_NOT_OBSERVED) for run in runs)
    rows: Tone = "good" if proved == len(runs) else "open" if is_open else "bad"
    warned = [run for run in runs if run.warnings]
    models: tuple[Tone, str] = ("bad", f"{len(warned)} of {len(runs)} warned of") if warned else ("good", "no warning")
    marks = (
        Mark("rows", rows, f"{proved} of {len(runs)} runs proved"),
        Mark("models", *models),
    )
    tone = TONES[memo.decisions[0].recommendation]
    sentences = [_headline(decision, is_alone=len(memo.decisions) == 1) for decision in memo.decisions]
    tone = worst((tone, "open")) if warned else tone
    return Verdict(tone, " · ".join(words), " ".join([*sentences, *left]), marks)


def _verb(decision: Decision) -> str:
    is_rollback = decision.recommendation == "stop" and deciding_gate(decision).then == "rollback"
    return "roll back" if is_rollback else decision.recommendation


def _headline(decision: Decision, *, is_alone: bool) -> str:
    """Return the effect and the reason in one sentence: what the first reader needs."""
    clause = deciding_clause(decision)
    effect = error_rate_text(decision, is_short=True) or f"The effect is {_gain(decision)}"
    if clause is None:
        worth = next(item for item in decision.gates[0].clauses if item.type == "worth")
        least = bound_text(decision.least_effect, decision.unit)
        reason = f"{effect}; a gain of {least} or more is {chance_text(worth.value or 0.0)} sure."
    elif not decision.can_decide:
        reason = f"{effect}; this design cannot tell whether that is worth having."
    else:
        reason = f"{effect}. {reason_text(clause)}"
    return reason if is_alone else f"Candidate {decision.candidate}: {reason[:1].lower()}{reason[1:]}"


def _gain(decision: Decision) -> str:
    return interval_words(decision.effect, decision.unit)


def memo_tiles(memo: Memo) -> list[Fact]:
    """Return effect, certainty and evidence of the first candidate, and the campaign's cost."""
    if not memo.decisions:
        return [_cost_tile(memo)]
    first = memo.decisions[0]
    clauses = first.gates[0].clauses
    declared = [clause for clause in clauses if clause.name not in first.undeclared]
    worth = next(clause for clause in clauses if clause.type == "worth")
    undeclared = len(first.undeclared)
    more = f"; {undeclared} more {'was' if undeclared == 1 else 'were'} not declared" if undeclared else ""
    return [
        _effect_tile(first),
        Fact(
            f"sure of {bound_text(first.least_effect, first.unit)} or more",
            chance_text(worth.value or 0.0),
            f"candidate {first.candidate}, after shrinkage",
        ),
        _cost_tile(memo),
        Fact(
            "clauses that hold",
            f"{sum(clause.verdict == 'pass' for clause in declared)} of {len(declared)}",
            f"decided by {first.decided_by}{more}",
        ),
        Fact(
            "evidence",
            number_of(len(memo.runs()), "run"),
            f"{number_of(first.look.num_seeds, 'paired seed')}, {look_words(first)}",
        ),
    ]


def _effect_tile(decision: Decision) -> Fact:
    found = accuracy_effect(decision)
    if found is None:
        value, _, unit = effect_text(decision.effect.value, decision.unit).partition(" ")
        words = interval_words(decision.effect, decision.unit)
        interval = f" {words[words.index('[') :]}" if "[" in words else ""
        return Fact(f"gain of {decision.candidate}", value, f"{unit}{interval}")
    low, high = found.effect.low, found.effect.high
    ends = f": {fewer_text(low, high)} (95%)" if low is not None and high is not None and found.num_differing else ""
    rows = "all held-out rows" if not found.where else f"rows with {_where_text(found)}"
    return Fact("wrong answers", " → ".join(error_rates(found)), f"candidate {decision.candidate}, {rows}{ends}")


def _cost_tile(memo: Memo) -> Fact:
    spent, agreed = (
        device_time_text(seconds).removesuffix(" of device time") for seconds in (memo.spent_s(), memo.budget_s)
    )
    notes = [f"{spent} of {agreed} agreed" if memo.cost else f"of {agreed} agreed"]
    if memo.other_stages_s:
        notes.append(f"{_plain_time(memo.other_stages_s)} of it for stages that are not compared")
    if memo.evaluation_s:
        notes.append(f"evaluation, apart: {device_time_text(memo.evaluation_s)}")
    return Fact("cost of training", memo.cost or spent, "; ".join(notes))


def _plain_time(seconds: float) -> str:
    return device_time_text(seconds).removesuffix(" of device time")


def _summary_facts(memo: Memo, decision: Decision) -> FactList:
    gain = _gain(decision)
    wrong = error_rate_text(decision)
    path = decision_path(decision)
    items = [
        Fact("change", _change_text(decision), f"tried because {decision.because}" if decision.because else ""),
        Fact("effect", wrong or gain, f"{gain} on the primary benchmarks" if wrong else ""),
        Fact("main risk", main_risk(decision)),
        Fact("next step", next_text(decision)),
        Fact("instead", instead_text(decision)),
        Fact("cost so far", device_time_text(decision.spent_s), "both arms"),
        Fact("owner", decision.owner or "no owner is named"),
        Fact("decision", _record(memo, path, look_words(decision), TONES[decision.recommendation]), path),
    ]
    return FactList(items, title=f"Candidate {decision.candidate}: {_verb(decision)}")


def _change_text(decision: Decision) -> str:
    return ", ".join(f"{key}: {value}" for key, value in decision.patch.items())


def main_risk(decision: Decision) -> str:
    """Return what most endangers the recommendation: that it is fragile, a warning, evidence against it, or what the
    evidence could not show."""
    texts = [fragility_text(decision), *statement_texts(decision.warnings), *dissent_texts(decision)]
    return next(filter(None, [*texts, *statement_texts(decision.risks)]), "none that the evidence shows")


def next_text(decision: Decision) -> str:
    """Return the next step with its cost and duration."""
    if decision.recommendation == "stop":
        return "no further runs"
    if decision.recommendation == "scale" and STAGE in decision.patch:
        return "it stays in the pipeline"
    if decision.recommendation == "scale":
        is_recipe = NOT_OF_A_RECIPE.isdisjoint(decision.patch)
        known = "its recipe is the new known-good one" if is_recipe else "train as its runs were trained"
        if "plan" in decision.undeclared:
            return f"{known}; cost and date of scaling are unknown because the campaign requires no plan"
        plans = [seen_text(clause) for gate in decision.gates for clause in gate.clauses if clause.type == "plan"]
        return f"{known}; the plan for scaling it: {plans[0]}" if plans else known
    if decision.cheapest is None:
        return "work for people; see the open clauses"
    wall_s = decision.next_wall_s
    done = "" if wall_s is None else f", done {duration_text(wall_s)} after the start"
    return f"{more_text(decision.cheapest, with_price=False)}{price_text(decision.cheapest)}{done}"


def instead_text(decision: Decision) -> str:
    """Return the alternative to the recommendation, and its cost."""
    if decision.recommendation == "scale":
        return f"keep the baseline: no cost, but no gain of {_gain(decision)}"
    if decision.recommendation == "narrow":
        return "stop here: keep the baseline and leave the question open"
    more = decision.gates[0].more
    if more is None or not more.would_help() or (more.probability or 0.0) < LEAST_CHANCE:
        return "none that the evidence supports"
    return f"continue against the rule: {more_text(more)}"


def look_words(decision: Decision) -> str:
    """Return which of the declared looks a decision was made at."""
    if not decision.look.is_gate:
        return "an unscheduled look"
    return "the only look" if decision.num_looks == 1 else f"look {decision.look_number} of {decision.num_looks}"


# The figures


def _figures(memo: Memo) -> Iterator[Figure]:
    first = memo.decisions[0]
    alike = [decision for decision in memo.decisions if decision.unit == first.unit]
    rows = [_forest_row(item.candidate, item.effect, item.recommendation) for item in alike]
    yield figure(
        _forest(rows, unit=first.unit, label="Gain of each candidate with its 95% interval", limit=first.least_effect),
        title="The gain",
        caption="What the candidate gains over the baseline on the primary benchmarks (of a loss, how much it "
        "falls), over seeds and items together, with its 95% interval. The dashed line is the smallest gain "
        "worth having.",
        table=Table.of(
            memo.decisions,
            ("candidate", lambda decision: decision.candidate),
            ("gain", _gain),
            ("recommendation", lambda decision: decision.recommendation),
        ),
    )
    units = dict.fromkeys(effect.unit for item in memo.decisions for effect in _effects(item))
    for index, unit in enumerate(sorted(units, key=lambda unit: unit != "share")):
        measured = "as a share of the items" if unit == "share" else f"in {unit}"
        first_caption = (
            "A gain on a single benchmark may not generalize; guardrails must hold. Red: significantly worse than "
            "the baseline."
        )
        yield _benchmarks_figure(memo, unit, caption=f"The same, {measured}." if index else first_caption)


def _benchmarks_figure(memo: Memo, unit: str, *, caption: str) -> Figure:
    rows: list[ForestRow] = []
    cells: list[tuple[Text, ...]] = []
    for decision in memo.decisions:
        rows.append(ForestRow(decision.candidate, None, ""))
        for effect in [item for item in _effects(decision) if item.unit == unit]:
            differs = effect.num_differing > 0
            estimate = effect.effect if differs else Estimate(value=effect.effect.value)
            note = effect.role if differs else f"{effect.role}, none differ"
            rows.append(_forest_row(effect.benchmark, estimate, note))
            cells.append((decision.candidate, *(cell(effect) for _, cell in _EFFECT_CELLS)))
    return figure(
        _forest(rows, unit=unit, label=f"Effect on each benchmark in {unit} with its 95% interval", limit=None),
        title=f"Benchmark by benchmark ({unit})",
        caption=caption,
        table=Table(("candidate", *(heading for heading, _ in _EFFECT_CELLS)), cells),
    )


def _forest_row(name: str, effect: Estimate, note: str) -> ForestRow:
    return ForestRow(name, effect, note, is_worse(effect, 0.0, higher_is_better=True))


def _forest(rows: Sequence[ForestRow], *, unit: str, label: str, limit: float | None) -> Callable[[int], str]:
    return lambda width: forest_plot(
        rows,
        width=width,
        label=label,
        reference=0.0,
        limit=limit,
        x_label=f"gain over the baseline ({unit})",
    )


# One candidate


def _candidate_section(memo: Memo, decision: Decision) -> Section:
    least = bound_text(decision.least_effect, decision.unit)
    why = decision.least_effect_because or "the campaign gives no reason."
    blocks: list[Block] = [
        Paragraph(f"{_verb(decision).capitalize()}: {because_text(decision)}"),
        Paragraph(f"A gain of {least} was declared worth having: {why}"),
    ]
    if decision.meaning:
        blocks.append(Paragraph(f"What it means. {' '.join(statement_texts(decision.meaning))}"))
    blocks += [
        Listing(would_change_texts(decision), title="What would change the recommendation"),
        Listing([*statement_texts(decision.warnings), *statement_texts(decision.risks)], title="Risks"),
        Listing(dissent_texts(decision) or [_no_dissent(decision)], title="Dissent"),
        *(_gate_fold(memo, decision, gate) for gate in decision.gates),
        *_looks_fold(memo, decision),
        _benchmarks_fold(decision),
        _runs_fold(memo, decision),
        _results_fold(memo, decision),
    ]
    return Section(f"Candidate {decision.candidate}", blocks, anchor=decision.candidate)


def _no_dissent(decision: Decision) -> str:
    """Return that no number contradicts the decision, if no warning and no variation does."""
    if decision.recommendation == "narrow" or decision.warnings or decision.flips:
        return "None recorded."
    return "None recorded; no number contradicts it."


def _gate_fold(memo: Memo, decision: Decision, gate: GateResult) -> Fold:
    def seen(clause: Clause) -> Text:
        if not clause.evidence:
            anchor = "benchmarks" if clause.benchmarks else "runs"
            return Cell(seen_text(clause), link=f"#{decision.candidate}-{anchor}")
        path = clause.evidence[0].path
        return _record(memo, path, f"{seen_text(clause)} ({path})")

    def name_of(clause: Clause) -> Text:
        return Cell(f"{mark_of(decision, gate, clause)} {clause.name}", clause_tone(decision, gate, clause))

    table = Table.of(
        gate.clauses,
        ("clause", name_of),
        ("asks", requirement_text),
        ("seen", seen),
        ("why", reason_text),
        ("what would turn it", lambda clause: fix_text(decision, gate, clause)),
    )
    blocks: list[Block] = [TitledTable("Clause by clause", "", table if gate.then == "scale" else _without_last(table))]
    if unasked := unasked_text(decision, gate):
        blocks.append(Paragraph(unasked))
    is_open = gate.then == "scale" or gate.verdict == "pass"
    title = f"Gate {gate.gate}: {gate_text(gate)}."
    return Fold(title, blocks, note=gate_reason_text(decision, gate), is_open=is_open)


def _without_last(table: Table) -> Table:
    return Table(table.header[:-1], [row[:-1] for row in table.rows])


def gate_text(gate: GateResult) -> str:
    """Return the gate's result in words. A stop gate that passes is `met`."""
    if gate.then == "scale":
        return {"pass": "holds", "fail": "does not hold", "undecided": "open"}[gate.verdict]
    return {"pass": f"met, so {gate.then}", "fail": "not met", "undecided": "not met so far"}[gate.verdict]


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
    alone = decision.cheapest is not None and decision.cheapest.instead
    return f"for this clause only; others stay open: {text}" if alone else text


def unasked_text(decision: Decision, gate: GateResult) -> str:
    """Return the clauses that the gate could have required but did not; empty if none."""
    if gate.then != "scale" or not decision.undeclared:
        return ""
    lines = [clause.name for clause in gate.clauses if clause.name in decision.undeclared]
    others = [name for name in decision.undeclared if name not in lines]
    named = ", ".join([*(f"{name} (–)" for name in lines), *others])
    return f"Not asked, so neither for it nor against it: {named}."


def _effects(decision: Decision) -> list[BenchmarkEffect]:
    """Return the judged and the informative effects."""
    return [*decision.effects, *decision.secondary]


def _where_text(effect: BenchmarkEffect) -> str:
    return " and ".join(f"{name} {value}" for name, value in effect.where.items())


def _effect_name(effect: BenchmarkEffect) -> str:
    notes = [*([_where_text(effect)] if effect.where else []), *([] if effect.higher_is_better else ["less is better"])]
    return f"{effect.benchmark} ({', '.join(notes)})" if notes else effect.benchmark


def _effect_words(effect: BenchmarkEffect) -> str:
    if effect.num_differing or effect.effect.high is None:
        return interval_words(effect.effect, effect.unit)
    missed = effect_text(effect.effect.high, effect.unit, signed=False)
    return f"no item differs; up to {missed} could be missed"


def _items_text(effect: BenchmarkEffect) -> str:
    clusters = "" if effect.num_clusters == effect.num_items else f" in {number_of(effect.num_clusters, 'cluster')}"
    return f"{effect.num_items:,}{clusters}"


def _relative_text(effect: BenchmarkEffect) -> str:
    return f"{100 * effect.effect.value / abs(effect.baseline_score):+.1f}%" if effect.baseline_score else "—"


def _detects_text(effect: BenchmarkEffect) -> str:
    return "—" if effect.could_detect is None else detectable_text(effect.could_detect, effect.unit)


_EFFECT_CELLS: tuple[tuple[str, Callable[[BenchmarkEffect], str]], ...] = (
    ("benchmark", _effect_name),
    ("role", lambda effect: effect.role),
    ("baseline", lambda effect: f"{effect.baseline_score:.4f}"),
    ("candidate", lambda effect: f"{effect.candidate_score:.4f}"),
    ("effect", _effect_words),
    ("relative", _relative_text),
    ("could detect", _detects_text),
    ("items", _items_text),
)


def _benchmarks_fold(decision: Decision) -> Fold:
    clustered = any(effect.num_clusters != effect.num_items for effect in decision.effects)
    shared = " Items that come in clusters (a file, a person) are correlated: a cluster counts as one draw."
    note = (
        f"{len(_effects(decision))}, on {decision.look.num_seeds} paired seeds. Could detect: the smallest true gain "
        "that one look at 95% sees 80% of the time. To be scaled a gain must also be worth having and reproducible, so "
        f"it must be larger.{shared if clustered else ''}"
    )
    table = Table.of(_effects(decision), *_EFFECT_CELLS)
    blocks = [TitledTable("Effects", "", table)]
    return Fold("Benchmarks.", blocks, note=note, is_open=True, anchor=f"{decision.candidate}-benchmarks")


def _looks_fold(memo: Memo, decision: Decision) -> Iterator[Fold]:
    """Yield the candidate's looks with the bounds of each, if the campaign has several."""
    looks = [look for look in memo.looks if look.candidate == decision.candidate]
    if len(looks) < 2 and decision.num_looks < 2:
        return
    rows = [
        ForestRow(
            f"{number_of(look.look.num_seeds, 'seed')}{'' if look.look.is_gate else ', unscheduled'}",
            Estimate(value=look.effect.value, low=_bound(look, "gain"), high=_bound(look, "too small")),
            look.recommendation,
        )
        for look in looks
    ]
    table = Table.of(
        looks,
        ("look", lambda look: _record(memo, decision_path(look), look_words(look))),
        ("seeds", lambda look: str(look.look.num_seeds)),
        ("gain", _gain),
        ("required confidence", lambda look: f"{100 * look.look.level:.4g}%"),
        ("lower bound at it", lambda look: _bound_text(look, "gain")),
        ("upper bound (futility)", lambda look: _bound_text(look, "too small")),
        ("sure that it is worth having", lambda look: chance_text(_clause_value(look, "worth") or 0.0)),
        ("error spent by then", lambda look: f"{100 * look.look.spent_so_far:.3g}%"),
        ("recommendation", lambda look: look.recommendation),
    )
    plot = figure(
        _forest(rows, unit=decision.unit, label="Bounds of the gain at each look", limit=decision.least_effect),
        title="Look by look",
        caption="The left end of a bar is the lower bound at the confidence which that look requires: to scale it must "
        "lie above 0. The right end is the upper bound that may show futility: below the dashed line, the smallest "
        "gain worth having, the candidate is stopped.",
        table=table,
    )
    note = f"{len(looks)} taken, {decision.num_looks} declared. All looks share one error."
    yield Fold("Looks.", [plot], note=note, is_open=True, anchor=f"{decision.candidate}-looks")


def _clause_value(decision: Decision, clause_type: str) -> float | None:
    """Return the value of the rule's clause of a type."""
    clauses = (clause for gate in decision.gates for clause in gate.clauses)
    return next((clause.value for clause in clauses if clause.type == clause_type), None)


def _bound(decision: Decision, clause_type: str) -> float | None:
    value = _clause_value(decision, clause_type)
    return value if value is not None and math.isfinite(value) else None


def _bound_text(decision: Decision, clause_type: str) -> str:
    value = _bound(decision, clause_type)
    return "—" if value is None else effect_text(value, decision.unit)


def _runs_fold(memo: Memo, decision: Decision) -> Fold:
    table = Table.of(
        decision.runs,
        ("run", lambda run: _record(memo, run_record(run), run.run_id)),
        ("seed", lambda run: str(run.seed)),
        ("rows", lambda run: run.audit_verdict),
        ("model", lambda run: " ".join(map(run_warning_text, run.warnings)) or "no warning"),
        ("attempts", lambda run: str(run.num_attempts)),
        ("device time", lambda run: duration_text(run.device_s)),
        ("weights", lambda run: run.weights_digest[:12]),
    )
    note = f"{len(decision.runs)}, {device_time_text(decision.spent_s)}. {cost_note(memo)}"
    blocks = [TitledTable("Run by run", "", table)]
    return Fold("Runs.", blocks, note=note, is_open=True, anchor=f"{decision.candidate}-runs", pages_only=True)


def cost_note(memo: Memo) -> str:
    """Explain which runs the costs cover."""
    if any(STAGE in decision.patch for decision in memo.decisions):
        return f"The budget is for all stages; 'assay runs show {memo.campaign}' has each stage's cost."
    return "Candidates share the baseline's runs."


def _results_fold(memo: Memo, decision: Decision) -> Fold:
    seeds = [run.seed for run in decision.runs[: decision.look.num_seeds]]
    rows = [
        (effect.benchmark, str(seed), *(_record(memo, source.path, source.path) for source in sources))
        for effect in decision.effects
        for seed, *sources in zip(seeds, effect.baseline_results, effect.candidate_results, strict=False)
    ]
    table = Table(("benchmark", "seed", "baseline", "candidate"), rows)
    return Fold("Results by seed.", [TitledTable("Records of results", "", table)], pages_only=True)


# The sources


def _sources(memo: Memo) -> Iterator[Section]:
    sha256_text = memo.decisions[0].campaign_sha256 if memo.decisions else ""
    facts = [Fact("campaign", _record(memo, f"{home_of(memo.campaign)}/campaign.json", memo.campaign), sha256_text)]
    for decision in memo.decisions:
        path = decision_path(decision)
        facts.append(Fact(decision.candidate, _record(memo, path, path), decision.digest()))
        if decision.recommendation == "scale":
            known_good = known_good_of(decision)
            facts.append(Fact("", _record(memo, known_good, known_good), "the new known-good recipe"))
    yield Section("Where it comes from", [FactList(facts)], pages_only=True)
    if memo.records:
        folds = [Fold(path, [Code(text, anchor=anchor_of(path))]) for path, text in memo.records.items()]
        yield Section("The records", folds, pages_only=True)


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
    found += [decision_path(look) for look in memo.looks]
    return list(dict.fromkeys(found))


def _record(memo: Memo, path: str, shown: str, tone: Tone | None = None) -> Text:
    """Return a link to a record that the page embeds or that has an address, or its name alone."""
    return Cell(shown, tone, f"#{anchor_of(path)}" if path in memo.records else memo.addresses.get(path, ""))


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
