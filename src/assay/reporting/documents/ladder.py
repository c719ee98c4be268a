"""The page of a ladder: the path taken, what each change was worth, whether the gains add up, and which rung would have
been large enough for which gate."""

from collections.abc import Iterable, Iterator
from typing import Any

from assay.base.clock import utc_text
from assay.base.units import number_of
from assay.records.decision import Clause, Decision
from assay.records.evaluation import Estimate
from assay.records.ladder import BASE_STEP, NO_VERDICT, OWN_SIZE, TOGETHER_STEP, LadderAction, LadderStep
from assay.reporting.charts.evidence_plots import ForestRow, is_worse
from assay.reporting.document import (
    Block,
    Cell,
    Commands,
    Document,
    Fact,
    Listing,
    Section,
    TitledTable,
    Tone,
    Verdict,
    name,
    number,
)
from assay.reporting.documents.campaign_list import gains_figure
from assay.reporting.values import device_hours_text
from assay.reporting.views.evidence import LadderView, harm_shown
from assay.reporting.views.statements import deciding_clause, filled, interval_words, reason_text

TONES: dict[LadderAction, Tone] = {
    "adopt": "good",
    "keep out": "ended",
    "roll back": "bad",
    "stop": "bad",
    "continue": "good",
}
GATE_TONES: dict[str, Tone] = {"pass": "good", "fail": "bad", "undecided": "open"}


def ladder_document(view: LadderView) -> Document:
    """Return the page of a ladder."""
    sections = [
        Section("The path", list(_path(view))),
        Section("What each change was worth", list(_worth(view))),
        Section("Do the gains add up", list(_together(view))),
        Section("The smallest rung for each gate", list(_rungs(view))),
        Section("Gates", list(_gates(view)), pages_only=True),
    ]
    actions: dict[str, LadderAction] = {"adopted": "adopt", "kept out": "keep out", "rolled back": "roll back"}
    changes = {label: view.named(action) for label, action in actions.items()}
    return Document(
        name="ladder",
        title=view.question,
        kind="ladder",
        subtitle=f"ladder {view.ladder}, declared {utc_text(view.declared)}",
        verdict=ladder_verdict(view),
        tiles=[
            *(Fact(label, str(len(names)), ", ".join(names)) for label, names in changes.items()),
            Fact("device time", device_hours_text(view.device_s), "of all its runs"),
        ],
        sections=[section for section in sections if section.blocks],
        footer=f"Every number follows from the records of ladder {view.ladder} and its campaigns. 'assay decide again "
        "CAMPAIGN' judges a campaign again from its results.",
    )


def ladder_verdict(view: LadderView) -> Verdict:
    """Return how the ladder ended, and the known-good config that it ended with."""
    last, adopted, interaction = view.steps[-1] if view.steps else None, view.named("adopt"), view.interaction()
    is_undone = last is not None and last.step == TOGETHER_STEP and last.action == "roll back"
    config = f"the base with {' and '.join(adopted)}" if adopted and not is_undone else "the base"
    known_good = f"Known good is {config}."
    if view.status == "open" or last is None:
        left = [change for change in view.changes if change not in {step.step for step in view.steps}]
        return Verdict("open", "open", f"{view.stopped_by or 'Steps are left'}. Left: {', '.join(left) or 'the end'}.")
    if view.status == "stopped":
        return Verdict("bad", "stopped", f"Step {last.step}: {why_text(view, last)} {known_good}")
    harm = "All adopted changes together are worse than the base, on fresh seeds." if is_undone else ""
    sentences = (known_good, harm, clause_text(interaction) if interaction is not None else "")
    is_open = interaction is not None and interaction.verdict == "fail"
    tone: Tone = "bad" if is_undone else "open" if is_open else "good" if adopted else "ended"
    return Verdict(tone, "done", " ".join(filter(None, sentences)))


# The path


def _path(view: LadderView) -> Iterator[Block]:
    steps = [step for step in view.steps if step.step != TOGETHER_STEP and (step.trials or step.step != BASE_STEP)]
    yield TitledTable.of(
        "",
        "Each change is a patch on the newest known-good config: the base and what was adopted before.",
        steps,
        (name("step"), lambda step: step.step),
        (name("change"), lambda step: " ".join(f"{key}={value}" for key, value in _patch(view, step))),
        (name("action"), lambda step: Cell(step.action, TONES[step.action])),
        ("why", lambda step: why_text(view, step)),
    )
    yield Commands([("use it for the next ladder or campaign", f"base: {view.known_good}")])


def _patch(view: LadderView, step: LadderStep) -> Iterable[tuple[str, Any]]:
    return view.changes.get(step.step, {}).items()


def why_text(view: LadderView, step: LadderStep) -> str:
    """Return the reason of a step's action."""
    clauses = [(trial.rung, clause) for trial in step.trials for clause in trial.clauses]
    if step.action == "stop":
        rung, clause = next((rung, clause) for rung, clause in reversed(clauses) if clause.verdict == "fail")
        return f"{f'Rung {rung}. ' if rung else ''}{clause_text(clause)}"
    if step.step == BASE_STEP:
        losses = number_of(len(clauses), "loss", "losses")
        return f"{losses} in the band of the smaller rungs' law." if clauses else "Trained; no gate judges its losses."
    own = [clause for rung, clause in clauses if rung == OWN_SIZE]
    is_open = [clause for clause in own if clause.verdict == "undecided" and clause.reason != NO_VERDICT]
    deciding = [clause for clause in own if clause.verdict == "fail"] or is_open[:1] or own[:1]
    of_decision = _decision_text(view.decisions[step.step]) if step.step in view.decisions else ""
    return " ".join(of_decision if clause.type == "gain" else clause_text(clause) for clause in deciding)


def _decision_text(decision: Decision) -> str:
    """Return what the campaign found, and the clause that it goes by."""
    clause = harm_shown(decision) or deciding_clause(decision)
    reason = "All gates hold." if clause is None else reason_text(clause)
    return f"{interval_words(decision.effect, decision.unit)}. {reason}"


# The words of the gates


def clause_text(clause: Clause) -> str:
    """Return what a gate saw, as a sentence."""
    *earlier, last = clause.values.get("changes") or [""]
    values = {**clause.values, "value": clause.value, "bound": clause.bound, "earlier": earlier, "last": last}
    sentence = (
        _SENTENCES.get(clause.reason) or _SENTENCES.get(f"{clause.type} {clause.reason}") or _SENTENCES[clause.type]
    )
    return filled(sentence, {**values, "reason": clause.reason}, clause.unit)


_LOSS = (
    "The held-out loss of {value:.4f} is {reason} the {band[confidence]:.0%} band of the smaller runs' law, "
    "{band[low]:.4f} to {band[high]:.4f} at {target:sizes}{is_untested:?; so far out the band is untested}."
)
_STEP = "the forecast of {forecast_s:duration}, at most {bound:duration}; before it took {before_s:duration}."
_SENTENCES = {
    NO_VERDICT: "Not judged: {problem}",
    "gain": "An effect of {effect:interval} ({by}).",
    "loss_band": _LOSS,
    "base_loss": _LOSS,
    "step_time pass": f"A step of {{value:duration}} is within {_STEP}",
    "step_time fail": f"A step of {{value:duration}} is slower than {_STEP}",
    "code_length pass": "The code of the first pass saves {saved:interval}: not worse.",
    "code_length fail": "The code of the first pass saves {saved:interval}: worse.",
    "code_length": "The code of the first pass saves {saved:interval}: undecided.",
    "warnings pass": "No new warning about a run's numbers.",
    "warnings fail": "New warnings, which the known-good config does not have: {new:runs}.",
    "interaction additive": "The gains add up: together {together[value]:effect}, forecast of the sum "
    "{sum[value]:effect}, a difference of {interaction:interval}.",
    "interaction": "{last} interacts with {earlier:and}: together {together[value]:effect}, {reason} of "
    "{sum[value]:effect}, a difference of {interaction:interval}.",
}
"""By a clause's reason, its type and reason, or its type: the text with its fields."""


# What each was worth


def _worth(view: LadderView) -> Iterator[Block]:
    decided = view.changes.keys() & view.decisions.keys()
    rows = [(step, view.decisions[step.step]) for step in view.steps if step.step in decided]
    if not rows:
        return
    alone = {name: words for name, words in _together_rows(view) if name in view.changes}
    yield TitledTable.of(
        "",
        f"On the newest known-good config{'; and alone on the base, with fresh seeds' if alone else ''}.",
        rows,
        (name("change"), lambda row: row[0].step),
        (name("action", drop_order=2), lambda row: row[0].action),
        (name("gain on the config then"), lambda row: interval_words(row[1].effect, row[1].unit)),
        *([(name("alone on the base", drop_order=1), lambda row: alone.get(row[0].step, ""))] if alone else []),
        (number("error spent", drop_order=3), lambda row: f"{row[0].error_rate:.2%}"),
    )
    gains = [
        ForestRow(step.step, decision.effect, step.action, is_worse(decision.effect, 0.0, higher_is_better=True))
        for step, decision in rows
    ]
    yield gains_figure(rows[0][1].unit, gains)


def _together(view: LadderView) -> Iterator[Block]:
    if (clause := view.interaction()) is not None:
        yield TitledTable.of(
            "",
            f"On the base, {number_of(clause.values['seeds'], 'fresh seed')}.",
            list(_together_rows(view)),
            (name("arm"), lambda row: row[0]),
            (name("gain"), lambda row: row[1]),
        )


def _together_rows(view: LadderView) -> Iterator[tuple[str, str]]:
    """Yield the gains on the base, with fresh seeds: of each adopted change, their sum and all together."""
    if (clause := view.interaction()) is None:
        return
    values = clause.values
    totals = {"forecast of the sum": "sum", "all together": "together", "difference": "interaction"}
    for arm, effect in {**values["alone"], **{label: values[key] for label, key in totals.items()}}.items():
        yield arm, interval_words(Estimate.model_validate(effect), clause.unit)


# The rungs and the gates


def _rungs(view: LadderView) -> Iterator[Block]:
    if not view.reliability:
        return
    smallest = {item.gate: item for item in view.reliability if item.is_smallest}
    gates: dict[str, list[str]] = {}
    for gate in dict.fromkeys(item.gate for item in view.reliability):
        text = "no rung had all verdicts of the base's own size."
        if (found := smallest.get(gate)) is not None:
            text = (
                f"rung {found.rung}. Its verdicts on {number_of(found.changes, 'change')} were those of the base's own "
                f"size, so at least {found.least:.0%} of further ones will be (95% confidence)."
            )
        gates.setdefault(text, []).append(gate.replace("_", " "))
    yield Listing([f"{', '.join(names)}: {text}" for text, names in gates.items()])


def _gates(view: LadderView) -> Iterator[Block]:
    rows = [(step, trial.rung, clause) for step in view.steps for trial in step.trials for clause in trial.clauses]
    yield TitledTable.of(
        "",
        "",
        rows,
        (name("step"), lambda row: row[0].step),
        (name("rung"), lambda row: row[1] or "own size"),
        (name("gate"), lambda row: row[2].name),
        (name("verdict"), lambda row: Cell(row[2].verdict, GATE_TONES[row[2].verdict])),
        ("seen", lambda row: clause_text(row[2])),
    )
