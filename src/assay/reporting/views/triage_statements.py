"""The words of triage: every code and number that it found becomes a sentence here, and nowhere else."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from assay.base.clock import utc_text
from assay.base.units import duration_text, number_of, percent_text
from assay.records.ci_report import CiReport
from assay.records.commit_bisection import CommitBisection
from assay.records.data_changes import DataChanges, DataFinding
from assay.records.phase import Phase
from assay.records.side_by_side import SideBySide
from assay.records.skew import Skew
from assay.records.slow_changes import SlowChange, SlowChanges
from assay.records.statement import Statement
from assay.records.triage_overview import Finding
from assay.reporting.views.statements import filled
from assay.triage.hang import HungRank
from assay.triage.straggler import Straggler

SHOWN_CHARACTERS = 60
MIN_EPOCH_S = 1e8
"""1973; smaller numbers count rows."""


def triage_text(statement: Statement) -> str:
    """Return the sentence of a statement."""
    values = dict(statement.values)
    hours = values.get("device_hours")
    values["price"] = "" if hours is None else f", about {hours:.3g} device-hours"
    if statement.code == "no factor":
        reasons = {name: triage_text(Statement.model_validate(reason)) for name, reason in values["reasons"].items()}
        values["reasons"] = "; ".join(f"{name}: {text}" for name, text in reasons.items()) or "the table has none"
    if "because" in values:
        values["because"] = triage_text(Statement.model_validate(values["because"]))
    return filled(_TEXTS[statement.code], values)


_DIFFERS = (
    "at step {step} {quantity} is on record as {recorded} and comes out as {replayed}: a device computed wrongly then, "
    "or does now. Replay once more, on another machine too: what comes out twice is right."
)
_RUINED = (
    "{rows:,} of the step's {num_rows:,} rows cause this by themselves: the updates before had ruined the weights. "
    "Lower trainer.optimizer.learning_rate ({peak:.3g} at its peak, {rate:.3g} in the step before), or warm up longer."
)
_TEXTS = {
    "error": "{message}",
    # why attempts fail
    "no attempt": "there is no attempt.",
    "no failure": "no attempt failed.",
    "all failed": "every attempt failed, so nothing distinguishes attempts that would not.",
    "few units": "a cause rests on at least {least} units (recipes, seeds aside), and the attempts are of {units}.",
    "no factor": "no factor can be at fault: {reasons}.",
    "no region": "no region failed more often than the rest.",
    "chance": "nothing stands out more than chance allows (p = {p_value:.2g}).",
    "not on record": "failures are not spread by chance, but no factor on record explains them once the others and "
    "time are held: look for what the table does not name.",
    "inseparable": "something is at fault, and factors that never vary apart cannot be separated: see its ties.",
    "rival": "{factors:factors} or {within:list}: failures follow both, and these attempts cannot tell them apart.",
    "regions": "{regions:# region} failed too often.",
    "stopped": "{attempts:# attempt} left out: they were stopped from outside",
    "no time": "{attempts:# attempt} without a time",
    "no value": "no attempt has a value",
    "one value": "all attempts have one value",
    "no shared value": "no value is shared by {least} attempts",
    "explained": "it fails {ratio:.1f} times as often as the rest, and {adjusted:.1f} times within {within:list}",
    "explained factor": "within the rest of it, {factor:factors} fails {ratio:.1f} times as often as the rest, and "
    "{adjusted:.1f} times within {within:list}",
    "avoid and check": "fix or avoid {factors:factors}, then run 'assay triage fixed': {attempts} attempts{price}",
    "compare": "run {attempts} attempts with {factors:factors} and as many without, of one {within:list}: if both fail "
    "alike, it is not {factors:factors}{price}",
    "separate": "run {attempts} attempts with {with:factors} and without {without:factors}: if none fails, it is not "
    "the former{price}",
    # whether a fix worked
    "nothing before": "there is no attempt before that moment to compare with.",
    "no failure before": "nothing failed before that moment, so there is nothing that could be fixed.",
    "fixed": "attempts fail less often than before, even at the lowest plausible old rate.",
    "worse": "attempts fail more often than before, even at the highest plausible old rate.",
    "undecidable": "no number of attempts without a failure would decide it.",
    "undecided": "the attempts since do not decide it: {attempts} more without a failure would.",
    "no attempt since": "no attempt was made since: {attempts} more without a failure would decide it.",
    # which symptoms share a cause
    "few signatures": "{signatures:# signature} on record: nothing to share.",
    "shared": "{attempts:# attempt} on record, {failures:,} with these signatures.",
    "one signature stands out": "{attempts:# attempt} on record, {failures:,} with these signatures: what stands out "
    "is of one signature.",
    "none shared": "{attempts:# attempt} on record, {failures:,} with these signatures: {because}",
    # which ranks hang
    "none waits": "no rank waits in a collective, send or receive: every one that was entered has ended.",
    "never entered": "the others wait in a collective, send or receive that these never entered, or entered as "
    "another.",
    "not started": "the others wait in a collective that the devices of these have not begun: look at these devices.",
    "issued no more": "all entered the same collective, and only these issued nothing after it: look for errors of "
    "their devices.",
    "no dump": "the others wait, and some of those that they wait for could not even write a dump.",
    "tie": "as many ranks entered one collective as another: only the program can tell which is wrong.",
    "circle": "the ranks wait for one another in a circle: groups are entered in different orders.",
    "all entered": "every rank entered the same collective and none left it: look at the network and the devices.",
    # why a step looks bad
    "outside its error bound": "{operator} in {module}: {detail}.",
    "differs at once": "already at the first replayed step {quantity} is on record as {recorded} and comes out as "
    "{replayed}. The run was made by {recorded_by}, this is {replayed_by}: replay with that code, on the same kind of "
    "device.",
    "differs after the loss": f"the loss comes out as recorded; {_DIFFERS}",
    "differs from a step on": f"steps {{first}} to {{last}} come out as recorded; {_DIFFERS}",
    "bad rows": "{rows:,} of the step's {num_rows:,} rows have {criterion}; they are named above.",
    "rows of high loss": "the replay is equal. With the weights before the step its rows have a mean loss of "
    "{loss:.4g}, the rows of the steps before {earlier:.4g}; without {rows:,} of the step's {num_rows:,} rows, named "
    "above, it is {without:.4g}.",
    "loss not finite": f"the loss is not finite again. {_RUINED}",
    "gradient not finite": f"the loss is {{loss:.4g}}, and the gradient's norm is not finite. {_RUINED}",
    "loss far above its start": f"the loss is {{loss:.4g}}; training began at {{first:.4g}}. {_RUINED}",
    "few steps before": "too few steps before it are on record to call it high.",
    "no spike": "the loss is {loss:.4g}; over the {steps:,} steps before: median {median:.4g}, so this is "
    "{sigmas:+.1f} standard deviations: no spike.",
    "spike": "the replay is equal, and with the same weights the step's rows are no worse than the rows before them. "
    "The loss is {loss:.4g}; over the {steps:,} steps before: median {median:.4g}: the weights had gone wrong already. "
    "The largest gradient before it is that of step {worst_step}: norm {norm:.3g}, median {median_norm:.3g}.",
    # which tests flake
    "no outcome": "cannot tell: no outcome is on record. JUnit XML of runs has them.",
    "no commit": "cannot tell beyond tries within one file: no file names its commit. Give --commit, --path "
    "'{{commit}}/{{run}}.xml', or a property `commit` in the file.",
    "no repeats": "cannot tell beyond tries within one file: no commit ran twice in one configuration. Run one again "
    "(20 runs find a test that fails in 5% of runs with a chance of 64%), or name equal runs by --path.",
    "repeats": "{repeated:,} of {groups:# pair} of commit and configuration ran more than once.",
    "repeats without commit": "{repeated:,} of {groups:# pair} of commit and configuration ran more than once; "
    "{files:# file} without a commit left out. "
    "Give --commit, --path '{{commit}}/{{run}}.xml', or a property `commit` in the file.",
}
"""By code: the text with its fields."""


def because_text(found: Any) -> str:
    """Return the reason of a record's verdict."""
    if isinstance(found, CiReport):
        return triage_text(found.flaky_because)
    reason = _BECAUSE.get(type(found))
    return triage_text(found.because) if reason is None else reason(found)


def next_text(found: Any) -> str:
    """Return the next step after a record's verdict."""
    return _NEXT[type(found)](found)


def moment_text(at: str) -> str:
    """Return a moment as in the source, but seconds since the epoch as a date."""
    try:
        return utc_text(float(at)) if float(at) >= MIN_EPOCH_S else at
    except ValueError:
        return at


def factors_text(factors: Mapping[str, str]) -> str:
    """`host=n05 + image=a`."""
    return " + ".join(f"{name}={value}" for name, value in factors.items())


# The overview


_LOST: dict[Phase, tuple[str, str]] = {
    "lost": ("was work that no commit kept", "assay runs goodput"),
    "late": ("trained steps that came too late for the other clusters", "assay runs show RUN"),
    "stalled": ("stood still in hangs", "assay runs goodput"),
    "meeting": ("waited for other clusters", "assay runs show RUN; a smaller outer.deadline_s waits less"),
    "startup": ("went before the first steps", "assay triage startup"),
    "data": ("waited for rows", "assay data show DATASET, and loader.threads of the recipe"),
    "checkpoint": (
        "was spent on commits",
        "save as often as 'assay runs goodput' says; in a recipe, trainer.commit_every: auto",
    ),
    "idle": ("was held with nothing to do", "assay runs goodput"),
}
"""Phase -> what happened in it, and the next step."""


def finding_text(finding: Finding, *, attempts: int) -> str:
    """Return what cost device time; `attempts`: all attempts on record."""
    if (cause := finding.cause) is not None:
        tied = f"; not told apart from {len(cause.ties)} others" if cause.is_inseparable else ""
        return (
            f"{factors_text(cause.factors)}: {percent_text(cause.rate)} of {cause.attempts:,} attempts failed, "
            f"elsewhere {percent_text(cause.elsewhere_rate)}{tied}"
        )
    if (change := finding.change) is not None:
        assert change.ratio is not None
        phase = "" if change.phase is None else f", most of it in '{change.phase}'"
        due = f", due to {' and '.join(change.assigned)}" if change.assigned else f"; {change.verdict}"
        longer = percent_text(change.ratio - 1.0)
        return f"steps take {longer} longer since {moment_text(change.at)}{phase}{due}"
    if finding.phase is not None:
        return f"{percent_text(finding.share)} of all device time {_LOST[finding.phase][0]}"
    alike = " in the same way" if finding.attempts > 1 and finding.symptom is not None else ""
    last = finding.symptom
    detail = "each in a way of its own" if last is None else f"the last, of run {last.run_id}: {last.text}"
    return f"{finding.attempts:,} of {attempts:,} attempts failed{alike}; {detail}"


def finding_certainty(finding: Finding) -> str:
    """Return in a word or two how much is known about a finding."""
    if finding.symptom is not None or (finding.cause is None and finding.about == "failures"):
        return "cause unknown"
    return "measured" if finding.about == "spent" else "confirmed" if finding.is_confirmed else "suspected"


def finding_next(finding: Finding) -> str:
    """Return the next step after a finding."""
    if finding.cause is not None:
        return triage_text(finding.cause.next)
    if finding.change is not None:
        return next_text(finding.change)
    if finding.phase is not None:
        return _LOST[finding.phase][1]
    return "assay triage symptoms" if finding.symptom is None else f"assay runs show {finding.symptom.run_id}"


# Ranks that hang or are slow


def silence_text(hung: HungRank, process_state: str) -> str:
    """`no sign of life for 61 s, process stopped by a signal`."""
    others = f", as of {hung.num_silent_others} more" if hung.num_silent_others else ""
    state = process_state or "in an unknown state"
    return f"no sign of life for {hung.silent_s:.0f} s{others}, process {state}"


def straggler_text(slow: Straggler) -> str:
    """Return what a slow rank costs the others."""
    return (
        f"rank {slow.rank} is slow: {slow.own_s:.3g} s of its own work a step up to step {slow.step}, "
        f"{slow.own_s / slow.others_s:.1f} times the others' {slow.others_s:.3g} s; all wait for it"
    )


# What became slower


def _changes_because(changes: SlowChanges) -> str:
    if changes.changes:
        return f"{number_of(len(changes.changes), 'lasting change')} of level, spikes left out."
    if changes.measurements < 10:
        return f"{changes.measurements} measurements tell nothing: a change needs 5 on either side of it."
    return "no lasting change is greater than the noise."


def _change_because(change: SlowChange) -> str:
    names = ", ".join(change.changed)
    if change.verdict == "unexplained":
        return "no factor on record changed there."
    if change.verdict == "assigned":
        return f"{names} changed alone." if len(change.changed) == 1 else "runs that cross separate the factors."
    if any(not before or not after for before, after in change.changed.values()):
        return f"{names}: not on record on one side of the change."
    return f"{names} changed together, and too few runs have one without the other."


def _change_next(change: SlowChange) -> str:
    if change.verdict == "unexplained":
        return "look at what is not on record: --factors names further columns."
    if change.verdict == "assigned":
        name = max(change.assigned, key=lambda name: _distance(change.assigned[name], change.ratio is not None))
        return f"compare runs that differ in {name} alone, to confirm it before it is undone."
    (name, (_, after)), *others = change.changed.items()
    if not others:
        return f"record {name} in every run."
    rest = ", ".join(f"{other}={before or 'what it was'}" for other, (before, _) in others)
    cost = "" if change.device_hours_needed is None else f": {change.device_hours_needed:.2g} device-hours"
    return f"{change.runs_needed} runs of {name}={after or 'what it is'} with {rest}{cost}."


def _distance(effect: float, is_ratio: bool) -> float:
    return abs(math.log(effect)) if is_ratio else abs(effect)


def longer_text(ratio: float, low: float | None, high: float | None) -> str:
    """Return a ratio of durations as text: `5.3% longer (1.9% to 8.8%)`, with the interval in the direction of the
    ratio."""
    sign, word = (1.0, "longer") if ratio >= 1.0 else (-1.0, "less")
    shown = f"{abs(ratio - 1.0):.1%} {word}"
    if low is None or high is None:
        return shown
    ends = sorted((sign * (low - 1.0), sign * (high - 1.0)))
    return f"{shown} ({ends[0]:.1%} to {ends[1]:.1%})"


def _comparison_because(found: SideBySide) -> str:
    measured = f"a step of B takes {longer_text(found.ratio, found.low, found.high)} than one of A"
    if found.verdict == "same":
        return f"{measured}: a change of {found.least:.1%} or more is ruled out."
    if found.phase is None:
        return f"{measured}: neither a change nor the absence of one of {found.least:.1%} is certain yet."
    phase = found.phases[found.phase]
    return f"{measured}; {found.phase} most, {duration_text(phase.b_s)} for {duration_text(phase.a_s)}."


def _comparison_next(found: SideBySide) -> str:
    if found.verdict == "same":
        return "look for the cause elsewhere: the machine, the data, or what else changed."
    if found.phase is not None:
        return f"profile {found.phase} on both sides: that is where the time goes."
    if found.blocks_needed is None:
        return "raise --most-blocks, or --budget: these blocks do not tell how many would decide."
    blocks, cost = found.blocks_needed, found.device_hours / len(found.blocks) * found.blocks_needed
    return (
        f"about {number_of(blocks, 'block')} in all would decide (--most-blocks {blocks}, {cost:.2g} device-hours); "
        "fewer with more --steps in each, or on a quieter machine."
    )


def _bisection_because(found: CommitBisection) -> str:
    change = longer_text(found.ratio, found.low, found.high)
    if found.probability is None:
        measured = f"a step of BAD takes {change} than one of GOOD"
        if found.verdict == "no_difference":
            return f"{measured}: a change of {found.least:.1%} or more is ruled out, so no commit is to blame."
        return f"{measured}: neither a change nor the absence of one is certain yet, and no commit was measured."
    culprits, probability = _culprits_text(found), percent_text(found.probability)
    if found.verdict == "undecided":
        return f"BAD differs from GOOD, but no commit is sure enough yet: {culprits} with probability {probability}."
    apart = "" if len(found.culprits) == 1 else " All but the last do not run."
    return f"from {culprits} on, a step takes {change} than before (probability {probability}).{apart}"


def _culprits_text(found: CommitBisection) -> str:
    """`3f2a91c0de (a subject)`, or `one of 3 commits, ... to ...`."""
    subjects = {item.commit: item.subject for item in found.suspects}
    subjects |= {item.commit: item.subject for item in found.skipped}
    first, *others = [f"{commit[:10]} ({subjects.get(commit, '')})" for commit in found.culprits]
    return first if not others else f"one of {len(found.culprits)} commits, {first} to {others[-1]},"


def _bisection_next(found: CommitBisection) -> str:
    match found.verdict:
        case "no_difference":
            return "look for the cause elsewhere: the machine, the data, or what is installed."
        case "undecided":
            return "raise --most-blocks, --budget or --steps, or measure on a quieter machine."
        case "several":
            return "read these commits; or make those that do not run work, with what broke them undone."
    commit = found.culprits[0][:10]
    return f"'git show {commit}'; 'assay triage slow --ab {commit}^ {commit} RECIPE' says in which phase."


def _skew_because(skew: Skew) -> str:
    return {
        "even": "no location and no piece of work takes 5% longer or shorter than the others, beyond noise.",
        "location": "durations differ by where they were: look at these workers or stages.",
        "work": "durations differ by what was worked on, wherever that was: lengths or batches are uneven.",
        "both": "some locations are slow, whatever they work on, and the work is uneven, wherever it is.",
    }[skew.verdict]


# Which data changed


def _data_because(changes: DataChanges) -> str:
    if len(set(changes.sources.values())) == 1:
        return "both are the same rows, byte for byte"
    if not changes.results:
        return "what differs is no more than another draw of the same rows would"
    first = changes.results[0]
    return f"{number_of(len(changes.results), 'change')}, {first.what} ({first.kind}) first"


def data_text(finding: DataFinding) -> str:
    """Return what changed in a column."""
    return _DATA[finding.kind](finding, finding.details)


def _was_and_is(finding: DataFinding) -> str:
    return f"was {percent_text(finding.before)} of it and is {percent_text(finding.after)}"


def _stood(finding: DataFinding) -> str:
    return f"stood in {percent_text(finding.before)} of its rows and stands in {percent_text(finding.after)}"


def _medians(finding: DataFinding) -> str:
    return f"(median {finding.before:,.4g}, now {finding.after:,.4g})"


def _flagged(finding: DataFinding, _: Mapping[str, Any]) -> str:
    was, now = percent_text(finding.before), percent_text(finding.after)
    if finding.kind == "duplicates":
        return f"{was} of the rows were copies of an earlier one, now {now} are"
    return f"{was} of its rows were {finding.kind}, now {now} are"


def _unseen(finding: DataFinding, details: Mapping[str, Any]) -> str:
    share = percent_text(finding.after)
    if "text" in details:
        return f"{share} of its values are no numbers, such as '{_cut(details['text'])}'"
    instead = f", in place of '{_cut(details['instead'])}'" if details["instead"] is not None else ""
    most = f"'{_cut(details['value'])}' above all ({details['rows']:,} rows)"
    return f"{share} of its values were never seen before, {most}{instead}"


def _beyond(finding: DataFinding, details: Mapping[str, Any]) -> str:
    span = f"{details['low']:,.6g} to {details['high']:,.6g}"
    text = f"{percent_text(finding.after)} of its values are beyond the old ones ({span})"
    if "factor" in details:
        return f"{text}: as if in another unit, {details['factor']:,} times smaller"
    return f"{text}, such as {details['value']:,.6g}"


def _unit(finding: DataFinding, details: Mapping[str, Any]) -> str:
    if "factor" in details:
        return _beyond(finding, details)
    return f"all are {finding.effect:,.4g} times what they were {_medians(finding)}"


def _truncated(_: DataFinding, details: Mapping[str, Any]) -> str:
    share, limit = percent_text(details["share"]), f"{details['limit']:,} {details['unit']}"
    if details["is_now"]:
        return f"{share} of its rows were longer than {limit}, where now none is: they are cut"
    return f"{share} of its rows are longer than {limit}, where none was before: they were cut"


def _worded(finding: DataFinding, details: Mapping[str, Any]) -> str:
    instead = ""
    if "instead" in details:
        instead = f", {details['instead']!r} in {percent_text(details['instead_share'])}"
    return f"{details['text']!r}{_AT[details['at']]} {_stood(finding)}{instead}"


def _tokens(finding: DataFinding, details: Mapping[str, Any]) -> str:
    return f"token {' '.join(map(str, details['tokens']))}{_AT[details['at']]} {_stood(finding)}"


def _mask(finding: DataFinding, details: Mapping[str, Any]) -> str:
    was, now = percent_text(finding.before), percent_text(finding.after)
    if not details:
        return f"the median row trains on {was} of its tokens, now on {now}"
    return f"{_MASK[details['property']]}: {details['value']} in {was} of its rows, now in {now}"


def _share(finding: DataFinding, details: Mapping[str, Any]) -> str:
    value = details["value"]
    return f"{f'{value:,.6g}' if isinstance(value, float) else repr(_cut(value))} {_was_and_is(finding)}"


def _cut(value: Any) -> str:
    return str(value)[:SHOWN_CHARACTERS]


_AT = {"^": " at the start", "$": " at the end", "twice": " more than once", "": ""}
_MASK = {
    "first": "the first token that is trained on",
    "before": "the token before it",
    "last": "the last token that is trained on",
    "after": "the token after it",
    "end": "tokens left out at the end",
    "start": "whether the first token is trained on",
    "stretches": "spans that are trained on",
    "fits": "mask as long as the tokens",
    "shifted": "labels that are the tokens at their places",
}
_DATA: dict[str, Callable[[DataFinding, Mapping[str, Any]], str]] = {
    "columns": lambda finding, _: "a new column" if finding.after else "a column that is no longer there",
    **dict.fromkeys(("missing", "empty", "duplicates"), _flagged),
    "unseen": _unseen,
    "unit": _unit,
    "truncation": _truncated,
    "share": _share,
    "range": _beyond,
    "distribution": lambda finding, _: f"its distribution moved {_medians(finding)}",
    "lengths": lambda finding, details: f"lengths in {details['unit']} moved {_medians(finding)}",
    **dict.fromkeys(("template", "words"), _worded),
    "tokens": _tokens,
    "mask": _mask,
    "labels": lambda finding, _: (
        "it follows less from the rest of its rows, as if so many labels more had been "
        f"changed: {percent_text(finding.effect)}"
    ),
    "values": lambda finding, details: (
        f"another value in {percent_text(finding.after)} of the {details['rows']:,} rows that both have"
    ),
}
_BECAUSE: dict[type, Callable[[Any], str]] = {
    SlowChanges: _changes_because,
    SlowChange: _change_because,
    SideBySide: _comparison_because,
    CommitBisection: _bisection_because,
    Skew: _skew_because,
    DataChanges: _data_because,
}
"""For records whose verdict and numbers are the reason; others carry a statement."""
_NEXT: dict[type, Callable[[Any], str]] = {
    SlowChange: _change_next,
    SideBySide: _comparison_next,
    CommitBisection: _bisection_next,
}
