"""The drawings of a memo: each candidate's gain against what is worth having, then benchmark by benchmark."""

from collections.abc import Iterator, Sequence

from assay.evaluation.decision.words import interval_words
from assay.records.evaluation import Estimate
from assay.reporting.figures.evidence_plots import ForestRow, forest_chart
from assay.reporting.figures.figure import Figure, Table, both_widths
from assay.reporting.views.memo import Memo, effect_row


def memo_figures(memo: Memo) -> Iterator[Figure]:
    """None before the first decision."""
    if not memo.decisions:
        return
    yield _gains(memo)
    units = {effect.unit: None for decision in memo.decisions for effect in decision.effects}
    for unit in units:
        yield _benchmarks(memo, unit)


def _gains(memo: Memo) -> Figure:
    lead = memo.decisions[0]
    rows = [
        ForestRow(each.candidate, each.effect, each.recommendation, each.recommendation == "stop")
        for each in memo.decisions
        if each.unit == lead.unit
    ]
    wide, narrow = _forest(rows, unit=lead.unit, label="Gain of each candidate", limit=lead.least_effect)
    return Figure(
        title="The gain",
        caption="Candidate minus baseline on the primary benchmarks, over seeds and items together, with its "
        "95% interval. The dashed line is the smallest gain worth having.",
        wide=wide,
        narrow=narrow,
        table=Table(
            ("candidate", "gain", "recommendation"),
            [
                (each.candidate, interval_words(each.effect, each.unit), each.recommendation)
                for each in memo.decisions
            ],
        ),
    )


def _benchmarks(memo: Memo, unit: str) -> Figure:
    rows: list[ForestRow] = []
    for decision in memo.decisions:
        rows.append(ForestRow(decision.candidate, None, ""))
        rows += [
            ForestRow(effect.benchmark, effect.effect, effect.role, _is_worse(effect.effect))
            for effect in decision.effects
            if effect.unit == unit
        ]
    wide, narrow = _forest(rows, unit=unit, label=f"Effect on each benchmark in {unit}", limit=None)
    return Figure(
        title=f"Benchmark by benchmark ({unit})",
        caption="A gain that one benchmark alone carries is no gain of the method; a guardrail must hold. "
        "Red: surely worse than the baseline.",
        wide=wide,
        narrow=narrow,
        table=Table(
            ("candidate", "benchmark", "role", "baseline", "candidate", "effect", "could detect", "items"),
            [
                (decision.candidate, *effect_row(effect))
                for decision in memo.decisions
                for effect in decision.effects
                if effect.unit == unit
            ],
        ),
    )


def _forest(rows: Sequence[ForestRow], *, unit: str, label: str, limit: float | None) -> tuple[str, str]:
    return both_widths(
        lambda width: forest_chart(
            rows,
            width=width,
            label=f"{label} with its 95% interval",
            reference=0.0,
            limit=limit,
            x_label=f"candidate minus baseline ({unit})",
        )
    )


def _is_worse(effect: Estimate) -> bool:
    return effect.high is not None and effect.high < 0.0
