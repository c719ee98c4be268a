"""The figures of a memo: each candidate's effect, then each benchmark."""

from collections.abc import Callable, Iterator, Sequence

from assay.decision.sentences import interval_words
from assay.reporting.charts.evidence_plots import ForestRow, forest_plot, is_worse
from assay.reporting.document import Figure, Table, figure
from assay.reporting.views.memo import EFFECT_COLUMNS, Memo, all_effects, effect_row

BENCHMARKS_CAPTION = (
    "A gain on a single benchmark may not generalize; guardrails must hold. Red: significantly worse than the baseline."
)


def memo_figures(memo: Memo) -> Iterator[Figure]:
    """Yield nothing before the first decision."""
    if not memo.decisions:
        return
    yield _gains(memo)
    units = {effect.unit: None for decision in memo.decisions for effect in all_effects(decision)}
    for index, unit in enumerate(units):
        yield _benchmarks(memo, unit, caption=_caption(unit, is_first=index == 0))


def _caption(unit: str, *, is_first: bool) -> str:
    measured = "as a share of the items" if unit == "share" else f"in {unit}"
    return BENCHMARKS_CAPTION if is_first else f"The same of what is measured {measured}."


def _gains(memo: Memo) -> Figure:
    first = memo.decisions[0]
    rows = [
        ForestRow(
            decision.candidate,
            decision.effect,
            decision.recommendation,
            is_worse(decision.effect, 0.0, higher_is_better=True),
        )
        for decision in memo.decisions
        if decision.unit == first.unit
    ]
    return figure(
        _forest(rows, unit=first.unit, label="Gain of each candidate", limit=first.least_effect),
        title="The gain",
        caption="What the candidate gains over the baseline on the primary benchmarks (of a loss, how much it "
        "falls), over seeds and items together, with its 95% interval. The dashed line is the smallest gain "
        "worth having.",
        table=Table.of(
            memo.decisions,
            ("candidate", lambda decision: decision.candidate),
            ("gain", lambda decision: interval_words(decision.effect, decision.unit)),
            ("recommendation", lambda decision: decision.recommendation),
        ),
    )


def _benchmarks(memo: Memo, unit: str, *, caption: str) -> Figure:
    rows: list[ForestRow] = []
    effect_rows: list[tuple[str, ...]] = []
    for decision in memo.decisions:
        rows.append(ForestRow(decision.candidate, None, ""))
        for effect in all_effects(decision):
            if effect.unit == unit:
                worse = is_worse(effect.effect, 0.0, higher_is_better=True)
                rows.append(ForestRow(effect.benchmark, effect.effect, effect.role, worse))
                effect_rows.append((decision.candidate, *effect_row(effect)))
    return figure(
        _forest(rows, unit=unit, label=f"Effect on each benchmark in {unit}", limit=None),
        title=f"Benchmark by benchmark ({unit})",
        caption=caption,
        table=Table(("candidate", *EFFECT_COLUMNS), effect_rows),
    )


def _forest(rows: Sequence[ForestRow], *, unit: str, label: str, limit: float | None) -> Callable[[int], str]:
    return lambda width: forest_plot(
        rows,
        width=width,
        label=f"{label} with its 95% interval",
        reference=0.0,
        limit=limit,
        x_label=f"gain over the baseline ({unit})",
    )
