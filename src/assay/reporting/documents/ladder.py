"""The page of a ladder: the path taken, what each change was worth, whether the gains add up, and which rung would have
been large enough for which gate."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from assay.base.clock import utc_text
from assay.base.units import duration_text, number_of
from assay.records.decision import Clause, Decision
from assay.records.evaluation import Estimate
from assay.records.ladder import BASE_STEP, NO_VERDICT, OWN_SIZE, TOGETHER_STEP, LadderAction, LadderStep
from assay.reporting.charts.evidence_plots import ForestRow, forest_plot, is_worse
from assay.reporting.document import (
    Block,
    Cell,
    Commands,
    Document,
    Fact,
    Figure,
    Listing,
    Paragraph,
    Section,
    TitledTable,
    Tone,
    Verdict,
    figure,
    name,
    number,
)
from assay.reporting.values import device_hours_text
from assay.reporting.views.evidence import LadderView, RungReliability, harm_shown
from assay.reporting.views.statements import deciding_clause, effect_text, interval_words, reason_text

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
    return Document(
        name="ladder",
        title=view.question,
        kind="ladder",
        subtitle=f"ladder {view.ladder}, declared {utc_text(view.declared)}",
        verdict=ladder_verdict(view),
        tiles=[
            *(
                Fact(label, str(len(view.named(action))), ", ".join(view.named(action)))
                for label, action in (("adopted", "adopt"), ("kept out", "keep out"), ("rolled back", "roll back"))
            ),
            Fact("device time", device_hours_text(view.device_s), "of all its runs"),
        ],
        sections=[section for section in sections if section.blocks],
        footer=f"Every number follows from the records of ladder {view.ladder} and its campaigns. 'assay decide again "
        "CAMPAIGN' judges a campaign again from its results.",
    )


def ladder_verdict(view: LadderView) -> Verdict:
    """Return how the ladder ended, and the known-good config that it ended with."""
    adopted = view.named("adopt")
    together = view.step(TOGETHER_STEP)
    is_undone = together is not None and together.action == "roll back"
    config = f"the base with {' and '.join(adopted)}" if adopted and not is_undone else "the base"
    if view.status == "stopped":
        step = next(step for step in view.steps if step.action == "stop")
        return Verdict("bad", "stopped", f"Step {step.step}: {why_text(view, step)} Known good is {config}.")
    if view.status == "open":
        left = [change for change in view.changes if view.step(change) is None]
        return Verdict("open", "open", f"{view.stopped_by or 'Steps are left'}. Left: {', '.join(left) or 'the end'}.")
    interaction = view.interaction()
    sentence = f"Known good is {config}."
    if is_undone:
        sentence += " All adopted changes together are worse than the base, on fresh seeds."
    if interaction is not None:
        sentence += f" {interaction_text(interaction)}"
    is_open = interaction is not None and interaction.verdict == "fail"
    return Verdict("bad" if is_undone else "open" if is_open else "good" if adopted else "ended", "done", sentence)


# The path


def _path(view: LadderView) -> Iterator[Block]:
    steps = [step for step in view.steps if step.step != TOGETHER_STEP and (step.trials or step.step != BASE_STEP)]
    yield TitledTable.of(
        "",
        "Each change is a patch on the newest known-good config: the base and what was adopted before.",
        steps,
        (name("step"), lambda step: step.step),
        (name("change"), lambda step: _patch_text(view, step)),
        (name("action"), lambda step: Cell(step.action, TONES[step.action])),
        ("why", lambda step: why_text(view, step)),
    )
    yield Commands([("use it for the next ladder or campaign", f"base: {view.known_good}")])


def _patch_text(view: LadderView, step: LadderStep) -> str:
    return " ".join(f"{key}={value}" for key, value in view.changes.get(step.step, {}).items())


def why_text(view: LadderView, step: LadderStep) -> str:
    """Return the reason of a step's action."""
    clauses = [(trial.rung, clause) for trial in step.trials for clause in trial.clauses]
    own = [clause for rung, clause in clauses if rung == OWN_SIZE]
    if broken := [(rung, clause) for rung, clause in clauses if clause.verdict == "fail"]:
        if step.action == "stop":
            rung, clause = broken[-1]
            return f"{f'Rung {rung}. ' if rung else ''}{clause_text(clause)}"
        if step.action == "roll back":
            return " ".join(_reason_text(view, step, clause) for clause in own if clause.verdict == "fail")
    if step.step == BASE_STEP:
        compared = [clause for _, clause in clauses if clause.type == "base_loss" and clause.verdict == "pass"]
        return (
            f"{number_of(len(compared), 'loss', 'losses')} in the band of the smaller rungs' law." if compared else ""
        )
    is_open = [clause for clause in own if clause.verdict == "undecided" and clause.reason != NO_VERDICT]
    return _reason_text(view, step, is_open[0]) if is_open else _decision_text(view.decisions[step.step])


def _reason_text(view: LadderView, step: LadderStep, clause: Clause) -> str:
    return _decision_text(view.decisions[step.step]) if clause.type == "gain" else clause_text(clause)


def _decision_text(decision: Decision) -> str:
    """Return what the campaign found, and the clause that it goes by."""
    clause = harm_shown(decision) or deciding_clause(decision)
    reason = "All gates hold." if clause is None else reason_text(clause)
    return f"{interval_words(decision.effect, decision.unit)}. {reason}"


# The words of the gates


def clause_text(clause: Clause) -> str:
    """Return what a gate saw, as a sentence."""
    if clause.reason == NO_VERDICT:
        return f"Not judged: {clause.values['problem']}"
    return _SENTENCES[clause.type](clause, clause.values)


def _gain(clause: Clause, values: Mapping[str, Any]) -> str:
    return f"An effect of {interval_words(Estimate.model_validate(values['effect']), clause.unit)} ({values['by']})."


def _loss(clause: Clause, values: Mapping[str, Any]) -> str:
    band = Estimate.model_validate(values["band"])
    at = " and ".join(f"{name} {value:,.4g}" for name, value in values["target"].items())
    side = {"above": "above", "below": "below", "inside": "inside"}[clause.reason]
    untested = "; so far out the band is untested" if values["is_untested"] else ""
    return (
        f"The held-out loss of {clause.value:.4f} is {side} the {band.confidence:.0%} band of the smaller runs' law, "
        f"{band.low:.4f} to {band.high:.4f} at {at}{untested}."
    )


def _step_time(clause: Clause, values: Mapping[str, Any]) -> str:
    relation = "within" if clause.verdict == "pass" else "slower than"
    assert clause.value is not None and clause.bound is not None, "a judged step has a time"
    return (
        f"A step of {duration_text(clause.value)} is {relation} the forecast of {duration_text(values['forecast_s'])}, "
        f"at most {duration_text(clause.bound)}; before the change it took {duration_text(values['before_s'])}."
    )


def _code_length(clause: Clause, values: Mapping[str, Any]) -> str:
    saved = interval_words(Estimate.model_validate(values["saved"]), clause.unit)
    relation = {"pass": "not worse", "fail": "worse", "undecided": "undecided"}[clause.verdict]
    return f"The code of the first pass saves {saved}: {relation}."


def _warnings(_: Clause, values: Mapping[str, Any]) -> str:
    if not values["new"]:
        return "No new warning about a run's numbers."
    new = " and ".join(f"{rule} ({number_of(len(runs), 'run')})" for rule, runs in values["new"].items())
    return f"New warnings, which the known-good config does not have: {new}."


_SENTENCES: Mapping[str, Callable[[Clause, Mapping[str, Any]], str]] = {
    "gain": _gain,
    "loss_band": _loss,
    "base_loss": _loss,
    "step_time": _step_time,
    "code_length": _code_length,
    "warnings": _warnings,
    "interaction": lambda clause, _: interaction_text(clause),
}


def interaction_text(clause: Clause) -> str:
    """Return whether the gains add up, and which changes interact."""
    values, unit = clause.values, clause.unit
    found = interval_words(Estimate.model_validate(values["interaction"]), unit)
    together, total = (effect_text(values[key]["value"], unit) for key in ("together", "sum"))
    if clause.verdict == "pass":
        return f"The gains add up: together {together}, forecast of the sum {total}, a difference of {found}."
    *earlier, last = values["changes"]
    return (
        f"{last} interacts with {' and '.join(earlier)}: together {together}, {clause.reason} of {total}, a difference "
        f"of {found}."
    )


# What each was worth


def _worth(view: LadderView) -> Iterator[Block]:
    rows = [(step, view.decisions[step.step]) for step in view.steps if step.step in view.decisions]
    rows = [(step, decision) for step, decision in rows if step.step in view.changes]
    if not rows:
        return
    alone = interaction.values["alone"] if (interaction := view.interaction()) is not None else {}
    yield TitledTable.of(
        "",
        "On the newest known-good config; and alone on the base, with fresh seeds, for adopted changes.",
        rows,
        (name("change"), lambda row: row[0].step),
        (name("action", drop_order=2), lambda row: row[0].action),
        (name("gain on the config then"), lambda row: _effect(row[1])),
        (name("alone on the base", drop_order=1), lambda row: _alone(row[1], alone)),
        (number("error spent", drop_order=3), lambda row: f"{row[0].error_rate:.2%}"),
    )
    yield _forest([decision for _, decision in rows])


def _effect(decision: Decision) -> str:
    return interval_words(decision.effect, decision.unit)


def _alone(decision: Decision, alone: Mapping[str, Any]) -> str:
    found = alone.get(decision.candidate)
    return "" if found is None else interval_words(Estimate.model_validate(found), decision.unit)


def _forest(decisions: list[Decision]) -> Figure:
    rows = [
        ForestRow(item.candidate, item.effect, item.recommendation, is_worse(item.effect, 0.0, higher_is_better=True))
        for item in decisions
    ]
    unit = decisions[0].unit
    return figure(
        lambda width: forest_plot(
            rows,
            width=width,
            label="Gain of each change with its 95% interval",
            reference=0.0,
            limit=decisions[0].least_effect,
            x_label=f"gain over the known-good config ({unit})",
        ),
        title="The gain of each change",
        caption="In the order of the ladder, each over what was known good then. The dashed line is the smallest gain "
        "worth having. Red: worse.",
    )


# The end


def _together(view: LadderView) -> Iterator[Block]:
    clause = view.interaction()
    if clause is None:
        return
    yield Paragraph(Cell(interaction_text(clause), "good" if clause.verdict == "pass" else "open"))
    values = clause.values
    rows = [(change, values["alone"][change]) for change in view.changes if change in values["alone"]]
    rows += [("forecast of the sum", values["sum"]), ("all together", values["together"])]
    yield TitledTable.of(
        "",
        f"On the base, {number_of(values['seeds'], 'fresh seed')}.",
        rows,
        (name("arm"), lambda row: row[0]),
        (name("gain"), lambda row: interval_words(Estimate.model_validate(row[1]), clause.unit)),
    )


def _rungs(view: LadderView) -> Iterator[Block]:
    if not view.reliability:
        return
    smallest = {item.gate: item for item in view.reliability if item.is_smallest}
    texts: dict[str, list[str]] = {}
    for gate in dict.fromkeys(item.gate for item in view.reliability):
        texts.setdefault(_smallest_text(smallest.get(gate)), []).append(gate.replace("_", " "))
    yield Listing([f"{', '.join(gates)}: {text}" for text, gates in texts.items()])
    yield TitledTable.of(
        "",
        "How often the verdict at a rung was that at the base's own size.",
        view.reliability,
        (name("gate"), lambda item: item.gate.replace("_", " ")),
        (name("rung"), lambda item: item.rung),
        (number("same verdict"), lambda item: f"{item.agreed} of {item.changes}"),
        (number("at least (95%)"), lambda item: f"{item.least:.0%}"),
    )


def _smallest_text(found: RungReliability | None) -> str:
    if found is None:
        return "no rung had all verdicts of the base's own size."
    changes = number_of(found.changes, "change")
    return (
        f"rung {found.rung}. Its verdicts on {changes} were those of the base's own size, so at least "
        f"{found.least:.0%} of further ones will be (95% confidence)."
    )


def _gates(view: LadderView) -> Iterator[Block]:
    rows = [(step, trial.rung, clause) for step in view.steps for trial in step.trials for clause in trial.clauses]
    yield TitledTable.of(
        "",
        "",
        [row for row in rows if row[2].type != "interaction"],
        (name("step"), lambda row: row[0].step),
        (name("rung"), lambda row: row[1] or "own size"),
        (name("gate"), lambda row: row[2].name),
        (name("verdict"), lambda row: Cell(row[2].verdict, GATE_TONES[row[2].verdict])),
        ("seen", lambda row: clause_text(row[2])),
    )
