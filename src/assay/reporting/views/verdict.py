"""The sentence that opens a page, and the few numbers beside it: what a reader with ten seconds takes away."""

from typing import Literal, NamedTuple

from assay.base.units import count_text, duration_text, percent_text
from assay.records.evaluation import AUC, Estimate
from assay.reporting.views.comparison import ComparisonPage, ComparisonView
from assay.reporting.views.run import RunView

Tone = Literal["good", "bad", "open"]


class Verdict(NamedTuple):
    """What happened, in words."""

    tone: Tone
    word: str
    """One or two words, for those who see no colour."""
    sentence: str


class Tile(NamedTuple):
    """A number worth its own box."""

    name: str
    value: str
    note: str


def estimate_text(estimate: Estimate | None, *, digits: int = 4, signed: bool = False) -> str:
    """`0.8712 [0.8600, 0.8820]`; a dash where there is none."""
    if estimate is None:
        return "—"
    return f"{_digits(estimate.value, digits, signed)}{interval_text(estimate, digits=digits, signed=signed)}"


def interval_text(estimate: Estimate, *, digits: int = 4, signed: bool = False) -> str:
    """` [0.8600, 0.8820]`, or nothing where the estimate has no interval."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f" [{_digits(estimate.low, digits, signed)}, {_digits(estimate.high, digits, signed)}]"


def signed_text(value: float, digits: int = 0) -> str:
    """`+1,200`, `-3.1`; `0` for what rounds to nothing, whatever its sign."""
    shown = f"{value:+,.{digits}f}"
    return "0" if not shown.strip("+-0.") else shown


def device_hours_text(seconds: float) -> str:
    """`1.25 h`; below an hour `12 min 30 s`."""
    return f"{seconds / 3600:,.4g} h" if seconds >= 3600 else duration_text(seconds)


_UNDONE = {
    "running": ("running", "The run is running."),
    "gone": ("supervisor gone", "The process that drove the run is no more: it goes on when it is resumed."),
    "unknown": (
        "cannot tell",
        "Whether the run still runs cannot be told from here: nothing was heard of it for long.",
    ),
}


def run_verdict(run: RunView) -> Verdict:
    """The state of a run, what was proved of it, and what it found."""
    audit = run.audit
    if run.status == "failed":
        reason = run.attempts[-1].reason if run.attempts else "no attempt began"
        return Verdict("bad", "failed", f"The run failed: {reason or 'no reason was recorded'}.{_state(run)}")
    if audit is not None and audit.verdict == "fail":
        found = [*audit.problems, *(f"not learned: {row}" for row in audit.missing)]
        found += [f"learned more than once: {row}" for row in audit.repeated]
        sentence = f"The audit failed, so the result cannot be trusted: {found[0]}."
        return Verdict("bad", "audit failed", sentence)
    if run.status == "succeeded" and audit is not None and audit.verdict == "pass":
        return Verdict("good", "finished, proved", f"{_learned(run)}{_survived(run)}{_found(run)}")
    if run.status == "succeeded":
        return Verdict("open", "finished, not audited", f"The run finished.{_survived(run)}{_found(run)}")
    word, sentence = _UNDONE.get(run.status, ("stopped", "The run is stopped."))
    return Verdict("open", word, f"{sentence}{_state(run)}")


def run_tiles(run: RunView) -> list[Tile]:
    """Quality, rows, cost and incidents."""
    evaluation = run.evaluation
    headline = evaluation.headline if evaluation else None
    found = headline.estimate if headline else None
    device_s = run.held_s()
    useful = run.goodput
    commit = run.last_commit()
    audit = run.audit
    return [
        Tile(
            f"{headline.metric.title} on {evaluation.split}" if evaluation and headline else "quality",
            f"{found.value:.4f}" if found else "—",
            f"95%:{interval_text(found)}" if found else "not evaluated",
        ),
        Tile(
            "rows learned",
            count_text(audit.rows_learned) if audit else "—",
            f"of {count_text(audit.rows_expected)}; audit: {audit.verdict}" if audit else "not audited",
        ),
        Tile(
            "device time",
            device_hours_text(device_s) if device_s else "—",
            f"goodput {percent_text(useful)}" if useful is not None else "no phases recorded",
        ),
        Tile("attempts", str(len(run.attempts)), f"world sizes {' → '.join(map(str, run.world_sizes))}"),
        Tile(
            "last commit",
            f"step {commit.step:,}" if commit else "—",
            f"weights {commit.weights_digest[:12]}" if commit else "nothing committed",
        ),
    ]


def comparison_verdict(page: ComparisonPage) -> Verdict:
    """The one-point rule for each candidate; the page takes the tone of the worst."""
    verdicts = {each.compared.verdict for each in page.candidates}
    tone: Tone = "bad" if "fail" in verdicts else "open" if "undecided" in verdicts else "good"
    word = {"bad": "fail", "open": "undecided", "good": "pass"}[tone]
    return Verdict(tone, word, " ".join(_judged(each.compared) for each in page.candidates))


def margin_text(found: ComparisonView) -> str:
    """What a candidate may lose: `1 percentage point` of an AUC, `0.05 squared log tokens` of an error."""
    if found.metric != AUC:
        return f"{found.allowed_loss:g} {found.metric.unit}"
    return f"{100 * found.allowed_loss:g} percentage point{'' if found.allowed_loss == 0.01 else 's'}"


def _judged(found: ComparisonView) -> str:
    name, margin, title = found.candidate_run_id, margin_text(found), found.metric.title
    changed = estimate_text(found.difference, signed=True)
    difference = f"its {title} differs by {changed} on {found.num_rows:,} rows"
    if found.weights_equal:
        return (
            f"{name} ended with the baseline's weights, bit for bit, so it is as good: "
            f"{title} {found.candidate_value:.4f} on {found.num_rows:,} rows."
        )
    if found.verdict == "pass":
        return f"{name} is as good as the baseline, within {margin}: {difference}."
    if found.verdict == "fail":
        return f"{name} is worse than the baseline by more than {margin}: {difference}."
    return (
        f"Whether {name} is within {margin} of the baseline is undecided: {difference}. More rows are needed."
    )


def _learned(run: RunView) -> str:
    audit = run.audit
    assert audit is not None
    skipped = audit.rows_quarantined
    rest = f"; {skipped:,} rows lie in damaged row groups and were set aside" if skipped else ""
    if audit.epochs == 1:
        return f"Each of {count_text(audit.rows_learned)} rows was learned exactly once{rest}."
    share = count_text(audit.rows_learned / max(audit.epochs, 1))
    return f"Each of {share} rows was learned exactly once in each of {audit.epochs} epochs{rest}."


def _survived(run: RunView) -> str:
    if len(run.attempts) <= 1:
        return ""
    lost = run.lost_steps
    again = f"; {lost} steps were made again" if lost else "; no step was lost"
    ends = [each for each in run.attempts[:-1] if each.reason]
    reason = f" ({ends[0].reason})" if ends else ""
    times = "once" if len(run.attempts) == 2 else f"{len(run.attempts) - 1} times"
    return f" It was interrupted {times}{reason} and went on from its last commit{again}."


def _found(run: RunView) -> str:
    if run.evaluation is None or run.evaluation.headline.estimate is None:
        return ""
    metric, found = run.evaluation.headline.metric, run.evaluation.headline.estimate
    rows = f"{run.evaluation.overall.num_rows:,} held-out rows"
    return f" On {rows} its {metric.title} is {found.value:.4f}{interval_text(found)}."


def _state(run: RunView) -> str:
    commit = run.last_commit()
    if commit is None:
        return " It has no commit yet."
    after = duration_text(max(commit.committed - run.attempts[0].started, 0.0)) if run.attempts else "—"
    return f" Its last commit is of step {commit.step:,}, after {after}."


def _digits(value: float, digits: int, signed: bool) -> str:
    return format(value, f"{'+' if signed else ''}.{digits}f")
