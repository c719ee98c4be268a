"""The words of a decision: every code of its record becomes a sentence here, and nowhere else.

    Statement, Clause, MoreEvidence  --code--> a text with fields --values--> sentence
    {gain:effect}: +1.23 points   {chance:chance}: 87%   {seeds:# seed}: 3 seeds   {names:and}: a and b

Numbers decide; words may change. No code reads a sentence.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from string import Formatter
from typing import Any

from assay.base.units import duration_text, number_of, percent_text, tenths_text
from assay.records.coverage import CoverageCell, CoveredMode
from assay.records.decision import LEAST_CHANCE, BenchmarkEffect, Clause, Decision, GateResult, MoreEvidence
from assay.records.evaluation import Estimate
from assay.records.statement import Statement

_IN_POINTS = ("share", "AUC")

# Quantities


def effect_text(value: float, unit: str, *, signed: bool = True) -> str:
    """`0.0123` of a share -> `+1.23 points`; other units as they are: `+0.0123 nats per row`."""
    if unit in _IN_POINTS:
        return f"{_number(100 * value, '.2f', signed)} points" + (" of AUC" if unit == "AUC" else "")
    return f"{_number(value, '.4f', signed)} {unit}"


def is_beyond(effect: float, unit: str) -> bool:
    """Return whether an effect is as large as a whole share, so no gain reaches it."""
    return unit in _IN_POINTS and effect >= 1.0


def detectable_text(effect: float, unit: str) -> str:
    """Return the least effect that a design detects."""
    return "none that a share can have" if is_beyond(effect, unit) else effect_text(effect, unit, signed=False)


def side_text(harm: float | None, unit: str) -> str:
    """`0.61 points better` for a harm below 0, `1.20 points worse` for one above it."""
    if harm is None or not math.isfinite(harm):
        return "unknown"
    shown = effect_text(abs(harm), unit, signed=False)
    if not shown.partition(" ")[0].strip("0."):
        return "as good"
    return f"{shown} {'worse' if harm > 0.0 else 'better'}"


def bound_text(value: float, unit: str) -> str:
    """A threshold as declared: `0.015` of a share -> `1.5 points`, `0.02` -> `0.02 nats per row`."""
    if unit in _IN_POINTS:
        number = f"{100 * value:.4g}"
        return f"{number} point{'' if number == '1' else 's'}" + (" of AUC" if unit == "AUC" else "")
    return f"{value:.4g} {unit}"


def interval_words(estimate: Estimate, unit: str) -> str:
    """`+1.23 points [95%: +0.40 to +2.06]`."""
    if estimate.low is None or estimate.high is None:
        return f"{effect_text(estimate.value, unit)} (no interval)"
    scale, digits = (100.0, ".2f") if unit in _IN_POINTS else (1.0, ".4f")
    ends = " to ".join(_number(scale * end, digits, True) for end in (estimate.low, estimate.high))
    return f"{effect_text(estimate.value, unit)} [{100 * estimate.confidence:.3g}%: {ends}]"


def chance_text(chance: float) -> str:
    """`0.873` -> `87%`; a chance that rounds to 0% or 100% is `under 1%` or `over 99%`, because it is not exact."""
    if chance < LEAST_CHANCE:
        return "under 1%"
    return "over 99%" if chance >= 0.995 else f"{100 * chance:.0f}%"


def rate_text(rate: float) -> str:
    """`0.00513` -> `0.51%`."""
    return f"{100 * rate:.2g}%"


def device_time_text(seconds: float) -> str:
    """`7_200` -> `2 device-hours`; below an hour as a duration: `12 min 30 s of device time`."""
    if seconds >= 3600:
        hours = f"{seconds / 3600:,.4g}"
        return f"{hours} device-hour{'' if hours == '1' else 's'}"
    return f"{duration_text(seconds)} of device time"


def _number(value: float, digits: str, signed: bool) -> str:
    """Format a number; zero has no sign."""
    shown = format(value, f"{'+' if signed else ''}{digits}")
    return shown.lstrip("+-") if not shown.strip("+-0.") else shown


class _Words(Formatter):
    """Fills the fields of a text; a field's format names a kind of quantity."""

    def __init__(self, unit: str) -> None:
        self._unit = unit

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("?"):
            return format_spec[1:] if value else ""
        if value is None:
            return "unknown"
        if format_spec.startswith("# "):
            return number_of(value, format_spec[2:])
        kind = _KINDS.get(format_spec)
        return kind(value, self._unit) if kind is not None else str(super().format_field(value, format_spec))


_KINDS: Mapping[str, Callable[[Any, str], str]] = {
    "effect": effect_text,
    "size": lambda value, unit: effect_text(abs(value), unit, signed=False),
    "bound": bound_text,
    "side": side_text,
    "interval": lambda value, unit: interval_words(Estimate.model_validate(value), unit),
    "effects": lambda value, _: ", ".join(map(_effect_on_text, value)),
    "size of a gain": lambda value, _: "a loss" if value < 0.0 else "too small to be worth it",
    "above": lambda value, _: "below" if value < 0.0 else "above",
    "chance": lambda value, _: chance_text(value),
    "rate": lambda value, _: rate_text(value),
    "percent": lambda value, _: f"{100 * value:.4g}%",
    "share": lambda value, _: percent_text(value),
    "factors": lambda value, _: " + ".join(f"{name}={factor}" for name, factor in value.items()),
    "hours": lambda value, _: device_time_text(3600 * value),
    "times as many": lambda value, _: f"{value} times as many" if value > 1 else "as many",
    "items": lambda value, _: " and ".join(f"{count:,} of {name}" for name, count in value.items()),
    "draws": lambda value, _: " and ".join(map(_draws_text, value)),
    "columns": lambda value, _: ", ".join(f"{name} by {column or 'row'}" for name, column in value.items()),
    "seeds": lambda value, _: f"seed{'s' if len(value) > 1 else ''} {', '.join(map(str, value))}",
    "did": lambda value, _: _did(value),
    "warning": lambda value, _: _run_warning(value),
    "count": lambda value, _: str(len(value)),
    "and": lambda value, _: " and ".join(map(str, value)),
    "list": lambda value, _: ", ".join(map(str, value)),
    "device time": lambda value, _: device_time_text(value),
    "duration": lambda value, _: duration_text(value),
    "sizes": lambda value, _: " and ".join(f"{name} {size:,.4g}" for name, size in value.items()),
    "runs": lambda value, _: " and ".join(f"{name} ({number_of(len(runs), 'run')})" for name, runs in value.items()),
    "gain": lambda value, unit: _possible_text("gain", value, unit),
    "margin": lambda value, unit: _possible_text("margin", value, unit),
    "gives up": lambda value, _: f", gives up on {chance_text(value)}" if value >= 0.005 else "",
    "instead of": lambda value, _: f" instead of {value:,}" if value else "",
    "independent": lambda value, _: number_of(value["number"], "item" if value["are_items"] else "effective cluster"),
    "all of": lambda value, _: " and ".join(map(statement_text, value)),
    "one of": lambda value, _: " or ".join(map(statement_text, value)),
    "hint": lambda value, _: _hint(value),
    "statement": lambda value, _: statement_text(Statement.model_validate(value)),
}
"""Kinds of quantities; `{flag:?text}` is the text if the flag is set, `{number:# item}` a number of items."""


def filled(text: str, values: Mapping[str, Any], unit: str = "") -> str:
    """Return a text with its fields filled in."""
    return _Words(values.get("unit") or unit).vformat(text, (), values)


# Statements


def statement_text(statement: Statement) -> str:
    """Return the words of a statement."""
    return filled(_STATEMENTS[statement.code], statement.values)


_STATEMENTS = {
    # more evidence
    "seeds": "{seeds:# more seed} of both arms, to the look at {look}",
    "items": "{items:# more item} of {benchmark}, scored with the same checkpoints",
    "items or margin": "{items:# more item} of {benchmark}, more than the dataset has (about {most:,} if all of it "
    "were held out), or a wider margin",
    "items without failure": "{items:# more item} of {benchmark}{is_clustered:?, each in a cluster of its own}, "
    "without any further failure",
    "differing items": "items of {benchmark} on which candidate and baseline differ",
    "wider margin": "a wider margin: seeds vary too much, and {seeds} would not suffice",
    "campaign of seeds": "a new campaign with {seeds} seeds or more: seeds vary too much",
    "new campaign": "a new campaign with {seeds:# fresh seed} and the same gates",
    "campaign of items": "a new campaign with {seeds:# fresh seed} on more items and the same gates: {items:items}",
    "campaign of rows": "a new campaign with {seeds:# fresh seed} on more held-out rows and the same gates: "
    "{items:items}, of about {most:,} that there are",
    "no more evidence": "not more seeds or items ({seeds} seeds on {factor:times as many} items would hardly "
    "do{is_used_up:?, and the dataset has no more}), but",
    "smaller clusters": "smaller clusters: one of the {clusters:,} of {benchmark} holds {share:.0%} of its items",
    "new rows": "new rows: {draws:draws}",
    "smaller claim": "a smaller claim that {seeds} seeds on {factor:times as many} items would show: a gain of "
    "{gain:bound}",
    "larger claim": "a larger claim that {seeds} seeds on {factor:times as many} items would rule out: a "
    "gain of {gain:bound}",
    "wider margins": "a wider margin of {benchmarks:and}",
    "another measure": "another way to measure",
    "find loss": "find the cause with 'assay runs audit {run_id}', and train the run again",
    "drill again": "a drill of the candidate's recipe ('assay train drill RECIPE --out FILE')",
    "repair drill": "repair what the drill found, and repeat it until it passes",
    "add benchmarks": "a benchmark of known power for {modes:and}",
    "new holdout": "a new campaign with a holdout that was never opened",
    "find what was tuned": "find what was tuned to the primary benchmarks; then a campaign with a new holdout",
    "other scales": "campaigns of this candidate at other scales",
    "scale between": "a run at a scale between this one and the target",
    "other plan": "a smaller scope, or another date",
    "larger budget": "agree on a larger budget",
    # what the gain means
    "likelihood": "Per {per}, the probability of the right answer is multiplied by {factor:.3g}.",
    "more than calibration": "It is more than calibration: the ranking of the same rows gains {effect:interval}.",
    # variations
    "prior_sd doubled": "with a prior twice as wide",
    "prior_sd halved": "with a prior half as wide",
    "least_effect halved": "if half the gain were enough",
    "least_effect doubled": "if twice the gain were asked for",
    "without seed": "without seed {seed}",
    "without benchmark": "without {benchmark}",
    "scaled from": "Had the mean gain been below {least:effect}, it would not be scaled.",
    "would pass from": "A mean gain of {least:effect}, with this spread, would pass.",
    "no gain would pass": "With this spread no gain would pass, however large.",
    "no room for the gain": "With this spread no gain would pass: it takes {least:effect}, and from the baseline's "
    "score there is not as much to gain.",
    # risks
    "could be missed": "A true gain below {least:size} could have been missed.",
    "any could be missed": "Any true gain could have been missed: this design finds none that is possible.",
    "no guardrail": "No guardrail is declared: harm on other benchmarks would go unnoticed.",
    "no coverage": "No coverage is declared: a failure mode without a benchmark would go unnoticed.",
    "no target scale": "The gain was measured at this scale only; the gain at the target scale is unknown.",
    "no plan": "No plan is declared: whether scaling fits time and budget is open.",
    "one primary benchmark": "There is one primary benchmark: whether others gain is unknown.",
    "one split": "The primary benchmarks are scores and slices of one split's rows; their agreement says little about "
    "other tasks.",
    "best of several": "The best of {candidates} candidates looks better than it is; shrinkage corrects this as far as "
    "the prior is right.",
    "few seeds": "{seeds:# seed}: the variance between seeds is itself uncertain.",
    "items left out": "{benchmark}: not all runs scored {items:# item}, which are left out for all of them.",
    # dissent
    "lower on": "The candidate is worse than the baseline on {effects:effects}.",
    "higher on": "The candidate is better than the baseline on {effects:effects}.",
    "no difference": "No difference is seen on {effects:effects}.",
    "lower with seeds": "The candidate is worse than the baseline with {seeds:seeds}.",
    "higher with seeds": "The candidate is better than the baseline with {seeds:seeds}.",
    "calibration alone": "The gain is in likelihood, and not seen in ranking ({effect:interval}): it may be "
    "calibration alone, which a temperature fitted on held-out rows gives without training.",
    # warnings
    "several changes": "candidate '{candidate}' changes {keys:count} keys at once ({keys:list}): its effect cannot be "
    "credited to any one of them. Make a candidate of each.",
    "guardrail at zero": "{benchmark} is 0 on every item for both sides: it cannot get worse, so it guards nothing.",
    "outlier seed": "{arm} with seed {seed} scores {distance:size} {distance:above} the mean of its other seeds, "
    "more than these scatter: one run that crashed or was lucky, or an arm that scatters more, decides this comparison."
    "{can_trim:? A campaign that declares a trimmed mean goes by the others.}",
    "clusters differ": "{columns:columns}: only the noise of rows that both contain counts as shared.",
    "equal weights": "{arm} with seeds {seeds:and} ended with the same weights: that is one run, counted "
    "{seeds:count} times.",
    "underdispersed seeds": "the gains of the {seeds} seeds scatter less than the noise of their own items implies: "
    "the runs may share more than the recipe, and are then worth fewer than they are.",
    "runs warned": "{warned} of {runs:# run} of {arm} {rule:did}; with seed {seed}, {text:warning}",
    "models without input": "{models} of {of} models predict the same for every row, so this says little of the "
    "change.",
    # sealed holdouts
    "opened at another look": "It was opened for the look at {seeds:# seed}, and can be opened only once.",
    "opened by another campaign": "Campaign '{campaign}' opened it for {candidate}.",
    "scored before": "Run {run_id} was scored on it before it was opened.",
    # before the first run of a campaign
    "cost of runs": "cost: about {total_s:device time} for {runs:# run} of {run_s:device time}, as fast as the "
    "baseline's steps are here",
    "cost above budget": "cost: about {total_s:device time} for {runs:# run} of {run_s:device time}, as fast as the "
    "baseline's steps are here; budget_device_hours fits {fitting} of them",
    "file missing": "{key}: {path} does not exist yet; the first look will need it",
    "data warning": "{warning:warning} {rule:hint}",
    "measured noise": "by the noise that campaign '{campaign}' measured on {seeds:# seed} and {draws:independent}",
    "noise of items": "assuming that two models differ on {discordance:.0%} of {draws:,} independent items and a "
    "recipe's score by {deviation:bound} over its seeds",
    "noise of groups": "assuming that two models differ on {discordance:.0%} of {draws:,} effective clusters "
    "({items:,} items in {clusters:,} clusters{is_uneven:? of unequal size}) and a recipe's score by {deviation:bound} "
    "over its seeds",
    "power unknown": "power: unknown before the first look: no campaign on record measured these primary benchmarks, "
    "and their scores are not shares of items that can be counted now",
    "power of looks": "power, {source:statement}:",
    "power of look": "{is_other:?  }  look at {seeds:# seed}: scales {finds:gain} 80% of the time; of candidates that "
    "are worth having it scales {scales:chance}, stops {stops:chance}{gives_up:gives up}",
    "power if trimmed": "  without the best and the worst seed (over_seeds: trimmed):",
    "power of the mean": "  with every seed (over_seeds: mean):",
    "power of guardrail": "  guardrail {benchmark}, margin {margin:bound}, on {draws:independent}: passes "
    "{passes:chance} of candidates that do no harm; 80% with {enough:margin}",
    "guardrail unknown": "  guardrail {benchmark}: unknown before the first look; no campaign on record measured it, "
    "and it is not a share",
    "power of safety": "  safety {benchmark}, at most {allowed:rate}: {draws:independent} without a failure show "
    "{bound:rate}",
    "safety unknown": "  safety {benchmark}, at most {allowed:rate}: its items cannot be counted before the first look",
    "look without power": "the look at {seeds} seeds cannot decide: of the candidates that are worth having it would "
    "scale {scales:chance}, and end on {ends:chance} without a gain. Leave it out of looks, or take it with more "
    "seeds.",
    "campaign without power": "the campaign lacks power: of the candidates that are worth having its last look would "
    "scale {scales:chance}. {hint:statement}",
    "no design has power": "Neither seeds nor items would do: ask for more than {least:bound}.",
    "cheapest design": "The cheapest fix, for {power:.0%}: {fixes:all of}.",
    "guardrail without power": "guardrail '{benchmark}' lacks power: by the last look it would pass {passes:chance} of "
    "the candidates that do no harm, so most could not be scaled. {hint:statement}",
    "guardrails without power": "the {guardrails} guardrails lack power together: all of them would pass "
    "{passes:chance} of the candidates that do no harm. More items, more seeds, or wider margins.",
    "no guardrail has power": "Neither a margin, nor {seeds} seeds, nor {factor} times as many items would do.",
    "guardrail fixes": "For {power:.0%}: {fixes:one of}.",
    "safety cannot pass": "safety benchmark '{benchmark}' cannot pass: {draws:independent} without any failure still "
    "leave a rate of {bound:rate}, and at most {allowed:rate} is allowed. It takes {needed:statement}.",
    "margin": "{margin:margin}",
    "so many seeds": "{seeds} seeds",
    "seeds and runs": "{seeds} seeds ({runs:# more run})",
    "draws": "{draws:independent}{now:instead of}",
    "more draws than rows": "{draws:independent}{now:instead of}, more than the dataset has (about {most:,} if all of "
    "it were held out)",
}
"""By code: the text with its fields."""


def _draws_text(draws: Mapping[str, Any]) -> str:
    """`176 effective clusters of code instead of 22`: independent draws are what counts."""
    kind = "items" if draws["are_items"] else "effective clusters"
    return f"{draws['needed']:,} {kind} of {draws['benchmark']} instead of {draws['now']:,}"


def _possible_text(name: str, value: float, unit: str) -> str:
    """`a gain of 1.23 points`, unless it is more than a share can have."""
    if is_beyond(value, unit):
        return f"no {name} that a share can have"
    return f"a {name} of {effect_text(value, unit, signed=False)}"


def _effect_on_text(item: Mapping[str, Any]) -> str:
    if "effect" in item:
        return f"{item['benchmark']} ({interval_words(Estimate.model_validate(item['effect']), item['unit'])})"
    return f"{item['benchmark']} ({effect_text(item['value'], item['unit'])})"


def _did(rule: str) -> str:
    from assay.reporting.views.warnings import RULES

    return RULES[rule].did


def _hint(rule: str) -> str:
    from assay.reporting.views.warnings import hint_text

    return hint_text(rule)


def _run_warning(warning: str | Mapping[str, Any]) -> str:
    from assay.reporting.views.warnings import run_warning_text

    return run_warning_text(warning if isinstance(warning, str) else Statement.model_validate(warning))


def more_text(more: MoreEvidence | None, *, with_price: bool = True) -> str:
    """`2 more seeds of both arms (4 min of device time, 62% to pass)`, or a dash if nothing would help."""
    if more is None or not more.would_help():
        return "—"
    text = " ".join([statement_text(more.what), ", or ".join(map(statement_text, more.instead))]).rstrip()
    return f"{text}{price_text(more)}" if with_price else text


def price_text(more: MoreEvidence) -> str:
    """` (4 min of device time, 62% to pass)`; empty if nothing is known."""
    chances = {"to decide either way": more.decision_probability, "to pass": more.probability}
    notes = [device_time_text(more.device_s)] if more.device_s else []
    notes += [f"{chance_text(chance)} {what}" for what, chance in chances.items() if chance is not None]
    return f" ({', '.join(notes)})" if notes else ""


def hole_text(mode: CoveredMode) -> str:
    """Return why a failure mode is not covered, and what would cover it."""
    if not mode.cells:
        return f"no benchmark looks for it; {mode.owner} owns it"
    small = [cell for cell in mode.cells if cell.items_needed is not None]
    if small:
        cell = min(small, key=lambda cell: cell.items_needed or 0)
        return (
            f"'{cell.benchmark}' finds {cell.could_detect:.3g} at best, {mode.least_effect:.3g} matters: it "
            f"needs some {cell.items_needed:,} items, it has {cell.num_items:,}"
        )
    if older := [cell for cell in mode.cells if cell.state == "another version"]:
        return (
            f"{_quoted(older)} was run only with other items, prompts or grader than it has now: "
            "'assay eval run' runs it again"
        )
    return f"{_quoted(mode.cells)} was never run, so its power is not known: 'assay eval run'"


def _quoted(cells: Sequence[CoverageCell]) -> str:
    return ", ".join(f"'{cell.benchmark}'" for cell in cells)


# Clauses and gates


def requirement_text(clause: Clause) -> str:
    """Return what a clause asks for."""
    return filled(_REQUIREMENTS[clause.type], _values_of(clause), clause.unit)


def seen_text(clause: Clause) -> str:
    """Return what was observed."""
    values = _values_of(clause)
    seen = _SEEN.get((clause.type, clause.reason)) or _SEEN[clause.type, ""]
    match clause.type:
        case "guardrail" if (clause.values["harm"] or 0.0) <= 0.0:
            seen = f"no harm seen: {seen}"
        case "safety" | "rate_above":
            clustered = _IN_CLUSTERS if clause.values["clusters"] != clause.values["items"] else ""
            seen = f"{{failures}} of {{items:,}} items{clustered}, {seen}"
        case "audit" if clause.values["restarts"]:
            seen = f"{seen}; {{restarts:# restart}} survived"
        case "coverage":
            values = {**values, "count": len(values["holes"]), "some": values["holes"][:5]}
            seen = "{count:# hole}: {some:list}" if values["holes"] else "{count:# hole}"
        case "plan" if values["decision"]:
            dates = filled(_PLAN_DATES, values["decision"])
            seen = f"{seen}; {dates}"
    return filled(seen, values, clause.unit)


def reason_text(clause: Clause) -> str:
    """Return why a clause has its verdict."""
    values = _values_of(clause)
    text = _REASONS.get((clause.type, clause.reason)) or _REASONS["", clause.reason]
    if clause.type == "coverage" and clause.verdict == "fail":
        hole = CoveredMode.model_validate(clause.values["first"])
        return f"{hole.name} would go unnoticed: {hole_text(hole)}."
    if clause.is_thin:
        thinly = "one more would open it" if clause.type == "safety" else "by {cleared:.1f} standard errors"
        text = f"{text.removesuffix('.')}, but thinly: {thinly}."
    return filled(text, values, clause.unit)


def _values_of(clause: Clause) -> dict[str, Any]:
    return {**clause.values, "value": clause.value, "bound": clause.bound}


_REQUIREMENTS = {
    "gain": "the one-sided {level:percent} lower bound of the gain is above 0",
    "worth": "the gain is at least {least:bound}: {bound:chance} sure",
    "replication": "{seeds} new seeds find a gain: {bound:chance} sure",
    "left out": "without any one benchmark, half of the gain is left",
    "breadth": "{bound:chance} of the primary benchmarks gain",
    "too small": "the one-sided {level:chance} upper bound of the gain is below {least:bound}",
    "unlikely": "the gain is at least {least:bound}: less than {bound:chance} sure",
    "no way": "scale by the last look: less than {bound:chance} likely",
    "guardrail": "harm below {bound:bound}, with 95% confidence",
    "harm": "harm above {bound:bound}, with 95% confidence",
    "safety": "failure rate at most {bound:rate}, with 95% confidence",
    "rate_above": "failure rate above {bound:rate}, with 95% confidence",
    "spent": "more than {bound:hours}",
    "audit": "the receipts of every run prove that each row was trained on once",
    "drill": "every exercise of this recipe ends with the undisturbed weights and a clean audit",
    "coverage": "every failure mode has a benchmark that could detect it",
    "sealed": "at least {share:.0%} of the primary gain: {least:effect}",
    "scaling": "80% lower bound of the gain at the target scale at least {least:bound}",
    "plan": "on time with {least_on_time:chance}, in budget with {least_in_budget:chance}",
    "budget": "at most {bound:hours}",
}
"""By type of clause."""

_IN_CLUSTERS = " in {clusters:,} clusters, which tell as much as {trials:,.0f} independent ones"
_PLAN_DATES = (
    "decision on {middle} (80% of simulations: {low}, to {high}), due by the {due}, after {device_hours:,.0f} "
    "device-hours"
)

_SEEN = {
    ("gain", ""): "{value:effect}",
    ("worth", ""): "{value:chance}",
    ("replication", ""): "{value:chance}",
    ("left out", ""): "{value:effect}",
    ("breadth", ""): "{value:.0%}",
    ("too small", ""): "{value:effect}",
    ("unlikely", ""): "{value:chance}",
    ("no way", ""): "{value:chance}",
    ("no way", "no look left"): "not evaluated: no look is left",
    ("guardrail", ""): "{harm:side}, at worst {value:side}",
    ("harm", ""): "{harm:side}, at best {value:side}",
    ("safety", ""): "so at most {value:rate}",
    ("rate_above", ""): "so at least {value:rate}",
    ("spent", ""): "{value:hours}",
    ("audit", ""): "{value:.0f} of {bound:.0f} runs proved",
    ("drill", ""): "{value:.0f} of {bound:.0f} exercises, {workers} workers",
    ("coverage", ""): "",
    ("sealed", ""): "{effect:interval}",
    ("sealed", "not opened"): "not opened",
    ("sealed", "invalid"): "the holdout is invalid",
    ("scaling", ""): "{expected:effect}, at least {value:effect}",
    ("scaling", "no forecast"): "no forecast",
    ("plan", ""): "on time {on_time:chance}, in budget {in_budget:chance}",
    ("budget", ""): "{value:hours}",
}
"""By type of clause and reason."""

_REASONS = {
    ("gain", "pass"): "The gain is shown.",
    ("gain", "undecided"): "No gain is shown yet.",
    ("gain", "fail"): "The candidate is worse than the baseline.",
    ("worth", "pass"): "The gain is large enough.",
    ("worth", "undecided"): "The gain may be smaller than the least effect.",
    ("worth", "fail"): "The gain is probably smaller than the least effect.",
    ("replication", "pass"): "A replication would probably find the gain.",
    ("replication", "undecided"): "A replication may not find the gain.",
    ("replication", "fail"): "A replication would probably not find a gain.",
    ("left out", "one benchmark"): "There is only one benchmark, so none is left out.",
    ("left out", "pass"): "The gain does not rest on one benchmark.",
    ("left out", "fail"): "The gain rests on one benchmark.",
    ("breadth", "one benchmark"): "There is only one benchmark; other benchmarks are unknown.",
    ("breadth", "pass"): "Enough benchmarks gain.",
    ("breadth", "fail"): "Too few benchmarks gain.",
    (
        "too small",
        "pass",
    ): "Even the one-sided {level:chance} upper bound of the gain, {value:effect}, is {value:size of a gain}.",
    ("too small", "fail"): "The gain may be large enough.",
    ("unlikely", "pass"): "The gain is probably smaller than the least effect.",
    ("unlikely", "fail"): "The gain may reach the least effect.",
    ("no way", "pass"): "More seeds would probably not show a gain.",
    ("no way", "fail"): "More seeds may show a gain.",
    ("no way", "no look left"): "It is evaluated before the last look only.",
    ("", "no power"): "This design would miss a clear gain, so this is no reason to stop.",
    ("guardrail", "pass"): "Any harm is within the margin.",
    ("guardrail", "fail"): "The harm exceeds the margin.",
    ("guardrail", "undecided"): "The harm may exceed the margin.",
    ("guardrail", "undersized"): "Too small to tell: its standard error, {error:size}, is more than "
    "1/{margins_per_error} of the margin.",
    (
        "guardrail",
        "error unknown",
    ): "Too small to tell: with one seed, or without differing items, the error is unknown.",
    ("harm", "pass"): "Harm beyond the margin is shown.",
    ("harm", "fail"): "No harm beyond the margin is shown.",
    ("safety", "pass"): "The failure mode is rare enough.",
    ("safety", "fail"): "The failure mode is more frequent than allowed: at least {lower:rate}.",
    ("safety", "undecided"): "{items:,} items are too few to show that it is rare enough.",
    ("rate_above", "pass"): "The rate is above the limit.",
    ("rate_above", "fail"): "No rate above the limit is shown.",
    ("spent", "pass"): "The campaign has cost more.",
    ("spent", "fail"): "The campaign has cost less.",
    ("audit", "pass"): "Nothing was lost.",
    ("audit", "fail"): "Run {run_id}: audit {audit}.",
    ("audit", "not observed"): "Run {run_id}, {audit}: another tool trained it. Declare drill: null to decide without.",
    ("drill", "pass"): "No kill lost any data.",
    ("drill", "fail"): "No exercise is on record.",
    ("drill", "problem"): "{exercise}: {problem}",
    ("drill", "other recipe"): "It was a drill of another recipe, with {difference}.",
    ("coverage", "pass"): "All failure modes are covered.",
    ("coverage", "fail"): "A failure mode would go unnoticed.",
    ("sealed", "pass"): "The gain holds on the sealed holdout.",
    ("sealed", "fail"): "Most of the gain is missing on the sealed holdout.",
    ("sealed", "not opened"): "The holdout is opened once, at a declared look at which every other clause holds.",
    ("sealed", "invalid"): "{problem:statement}",
    ("scaling", "pass"): "The gain holds at the target scale.",
    ("scaling", "fail"): "The gain may not hold at the target scale.",
    ("scaling", "undecided"): "The gain may not hold at the target scale.",
    ("scaling", "no forecast"): "{problem}",
    ("plan", "pass"): "The plan holds.",
    ("plan", "fail"): "The plan is too risky.",
    ("budget", "pass"): "The cost is within the budget.",
    ("budget", "fail"): "The cost exceeds the budget.",
}
"""By type of clause and reason."""


def gate_reason_text(decision: Decision, gate: GateResult) -> str:
    """Return what a gate goes by."""
    by = next((clause for clause in gate.clauses if clause.name == gate.decided_by), None)
    if gate.then != "scale":
        none = "No reason to stop is shown." if gate.gate == "stop" else "Its conditions are not met."
        return f"{by.name}: {reason_text(by)}" if by is not None else none
    declared = [clause for clause in gate.clauses if clause.name not in decision.undeclared]
    num_held = sum(clause.verdict == "pass" for clause in declared)
    if by is not None:
        return f"{num_held} of {len(declared)} declared clauses hold. {by.name}: {reason_text(by)}"
    without = f"; not declared: {', '.join(decision.undeclared)}" if decision.undeclared else ""
    return f"{len(declared)} of {len(declared) + len(decision.undeclared)} clauses are declared, and all hold{without}."


# The decision


def decision_text(decision: Decision) -> str:
    """Return the recommendation and its reason, with the effect, as one passage."""
    found = "Scale" if decision.recommendation == "scale" else "Narrow"
    if decision.recommendation == "stop":
        found = "Roll back" if deciding_gate(decision).then == "rollback" else "Stop"
    return f"{found} {decision.candidate}: {because_text(decision)}"


def because_text(decision: Decision) -> str:
    """Return the reason of the recommendation, and the effect."""
    gate, clause = deciding_gate(decision), deciding_clause(decision)
    notes = [fragility_text(decision)]
    if clause is None:
        thin = ", ".join(item.name for item in gate.clauses if item.is_thin)
        reason = f"{_lower(gain_text(decision))}; {gate_reason_text(decision, gate)}{f' Thin: {thin}.' if thin else ''}"
    elif decision.recommendation == "stop":
        reason = f"{_lower(reason_text(clause))} {gain_text(decision)}."
    else:
        worth = next((item for item in gate.clauses if item.type == "worth"), None)
        reason = f"{_lower(reason_text(clause)).removesuffix('.')} (clause '{clause.name}'). {gain_text(decision)}."
        if not decision.can_decide and worth is not None:
            reason = (
                f"this design cannot answer. {gain_text(decision)}: worth having with {seen_text(worth)}, and neither "
                f"shown nor ruled out (clause '{clause.name}')."
            )
        notes = [f"The cheapest fix: {more_text(decision.cheapest)}."] if decision.cheapest is not None else []
    notes += [f"But {statement_text(item)}" for item in decision.warnings if item.code == "models without input"]
    return " ".join([reason, *filter(None, notes)])


def deciding_gate(decision: Decision) -> GateResult:
    """Return the gate that the recommendation follows from."""
    passed = [gate for gate in decision.gates[1:] if gate.verdict == "pass"]
    return passed[0] if decision.recommendation == "stop" and passed else decision.gates[0]


def deciding_clause(decision: Decision) -> Clause | None:
    """Return the clause that stops or blocks a candidate; None if it is scaled."""
    name = decision.blocking or (deciding_gate(decision).decided_by if decision.recommendation == "stop" else None)
    return next((clause for gate in decision.gates for clause in gate.clauses if clause.name == name), None)


def gain_text(decision: Decision) -> str:
    """`Wrong answers fall from 34.4% to 27.0% of held-out rows [95%: 5.5 to 9.3 points fewer], an effect of +0.12 nats
    per row [95%: ...] over 5 seeds`; without counted answers, `Its effect is +1.23 points [95%: ...] over 5 seeds`."""
    gain = interval_words(decision.effect, decision.unit)
    if decision.relative is not None:
        gain += f" ({100 * decision.relative:+.1f}% relative to the baseline)"
    left_out = " and ".join(map(str, decision.left_out_seeds))
    without = f", without the best and the worst of them (seeds {left_out})" if left_out else ""
    gain += f" over {number_of(decision.look.num_seeds, 'seed')}{without}{_direction_text(decision)}"
    wrong = error_rate_text(decision)
    return f"{wrong}, an effect of {gain}" if wrong else f"Its effect is {gain}"


def _direction_text(decision: Decision) -> str:
    """Return the direction of the scores if lower is better; else an empty string."""
    primary = [effect for effect in decision.effects if effect.role == "primary"]
    if all(effect.higher_is_better for effect in primary):
        return ""
    if len(primary) > 1:
        return " (less is better)"
    return f" (from {primary[0].baseline_score:.4f} to {primary[0].candidate_score:.4f}; less is better)"


def error_rate_text(decision: Decision, *, is_short: bool = False) -> str:
    """`Wrong answers fall from 34.4% to 27.0% of held-out rows [95%: 5.5 to 9.3 points fewer]`; empty if none are
    counted. If short, without what could be missed."""
    found = accuracy_effect(decision)
    if found is None:
        return ""
    before, after = error_rates(found)
    where = " and ".join(f"{name} {value}" for name, value in found.where.items())
    rows = f"held-out rows{f' with {where}' if where else ''}"
    low, high = found.effect.low, found.effect.high
    if not found.num_differing:
        missed = f" (a change of up to {100 * high:.1f} points could be missed)" if high and not is_short else ""
        return f"Wrong answers stay at {before} of {rows}, the same ones{missed}"
    verb = "fall" if found.candidate_score > found.baseline_score else "rise"
    change = f"stay at {before}" if after == before else f"{verb} from {before} to {after}"
    ends = f" [95%: {fewer_text(low, high)}]" if low is not None and high is not None else ""
    return f"Wrong answers {change} of {rows}{ends}"


def accuracy_effect(decision: Decision) -> BenchmarkEffect | None:
    """Return the effect on the share of right answers, on all rows if it is known; None if none are counted."""
    effects = (*decision.effects, *decision.secondary)
    return next((effect for effect in effects if effect.benchmark == decision.accuracy_benchmark), None)


def error_rates(effect: BenchmarkEffect) -> tuple[str, str]:
    """Return the shares of wrong answers of the baseline and of the candidate."""
    return tenths_text(1.0 - effect.baseline_score), tenths_text(1.0 - effect.candidate_score)


def fewer_text(low: float, high: float) -> str:
    """`5.5 to 9.3 points fewer`, `1.2 more to 3.0 points fewer`."""
    few, many = (round(100 * end, 1) for end in (low, high))
    if few >= 0:
        return f"{few:.1f} to {many:.1f} points fewer"
    if many <= 0:
        return f"{abs(many):.1f} to {-few:.1f} points more"
    return f"{-few:.1f} more to {many:.1f} points fewer"


def fragility_text(decision: Decision) -> str:
    """`Fragile: it would be narrow without seed 0 or 1.`; empty if no part of the evidence changes the
    recommendation."""
    parts_by_outcome = []
    for outcome, variations in decision.flips.items():
        seeds = [str(item.values["seed"]) for item in variations if item.code == "without seed"]
        all_of_them = f"without any one of its {number_of(len(seeds), 'seed')}"
        parts = [all_of_them if len(seeds) == decision.look.num_seeds else f"without seed {' or '.join(seeds)}"] * bool(
            seeds
        )
        parts += [statement_text(item) for item in variations if item.code == "without benchmark"]
        if parts:
            parts_by_outcome.append(f"{outcome} {' or '.join(parts)}")
    return f"Fragile: it would be {'; '.join(parts_by_outcome)}." if parts_by_outcome else ""


def would_change_texts(decision: Decision) -> list[str]:
    """Return a sentence for each other recommendation, then the gain at which the present one would change."""
    tried = decision.num_variations
    texts = [
        f"It would be {outcome} {', '.join(map(statement_text, found))} ({len(found)} of {tried} variations)."
        for outcome, found in decision.flips.items()
    ] or [f"No variation of assumptions, seeds or benchmarks would change it ({tried} were tried)."]
    return [*texts, *statement_texts([decision.turning_point] if decision.turning_point else [])]


def dissent_texts(decision: Decision) -> list[str]:
    """Return the objections of people, then the evidence against the recommendation."""
    return [*decision.objections, *statement_texts(decision.dissent)]


def statement_texts(statements: Iterable[Statement]) -> list[str]:
    """Return the words of each."""
    return list(map(statement_text, statements))


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]
