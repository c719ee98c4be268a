"""The document of the differences between two runs."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from assay.base.units import count_text, number_of, percent_text
from assay.reporting.document import Block, Document, Fact, FactList, Paragraph, Section, TitledTable, name, number
from assay.reporting.values import device_hours_text
from assay.reporting.views.runs.run_diff import DifferenceView, RunDiffView

OUTCOMES = {
    "device_seconds": "device time of training",
    "evaluation_seconds": "evaluation, apart",
    "tokens_per_s": "tokens a second",
}


def run_diff_document(diff: RunDiffView) -> Document:
    """Return the differences in recipe, environment and data, then the outcome."""
    known = [difference for difference in diff.outcome if not (difference.before is None and difference.after is None)]
    same = [title for title, found in (("recipe", diff.recipe), ("environment", diff.environment)) if not found]
    return Document(
        title=f"from {diff.before} to {diff.after}",
        kind="differences",
        sections=[
            Section(
                "",
                [
                    *([Paragraph(f"{' and '.join(same)}: the same")] if same else []),
                    *_changes("recipe", diff.recipe),
                    *_changes("environment", diff.environment),
                    FactList(
                        [
                            Fact("data", _data_text(diff)),
                            Fact("weights", "equal, bit for bit" if diff.weights_equal else "different"),
                            Fact("loss", _curve_text(diff)),
                        ]
                    ),
                    *_losses(diff),
                    *_changes("outcome", known, lambda key: OUTCOMES.get(key, key.replace("_", " "))),
                ],
            )
        ],
    )


def _changes(title: str, differences: Sequence[DifferenceView], name_of: Callable[[str], str] = str) -> Iterator[Block]:
    if differences:
        yield TitledTable.of(
            "",
            "",
            differences,
            (name(title), lambda difference: name_of(difference.name)),
            ("before", lambda difference: _value_text(difference.name, difference.before)),
            ("after", lambda difference: _value_text(difference.name, difference.after)),
        )


def _losses(diff: RunDiffView) -> Iterator[Block]:
    if diff.loss:
        yield TitledTable.of(
            "",
            "",
            diff.loss,
            (number("step"), lambda loss: f"{loss.step:,}"),
            (number("loss before"), lambda loss: f"{loss.before:.4f}"),
            (number("after"), lambda loss: f"{loss.after:.4f}"),
            (number("difference"), lambda loss: f"{loss.after - loss.before:+.4f}"),
        )


def _data_text(found: RunDiffView) -> str:
    if found.is_dataset_equal:
        return "the same dataset"
    if (data := found.dataset) is None:
        return "another dataset; one of the two is not here, so no more can be said"
    counts = (
        (len(data.shards_removed), "gone"),
        (len(data.shards_added), "new"),
        (len(data.shards_changed), "changed"),
    )
    shards = ", ".join(f"{number_of(count, 'shard')} {what}" for count, what in counts if count)
    return (
        f"another dataset: {number_of(data.rows_before, 'row')} then, {data.rows_after:,} now; "
        f"{shards or 'the same shards'} ('assay data diff' says how)"
    )


def _curve_text(diff: RunDiffView) -> str:
    if not diff.loss:
        return "no step was made by both"
    if diff.first_different_step is None:
        return "equal, bit for bit, at every step that both made"
    return f"differs from step {diff.first_different_step:,} on"


def _value_text(key: str, value: Any) -> str:
    if value is None:
        return "—"
    if value == "":
        return '""'
    if key in ("device_seconds", "evaluation_seconds"):
        return device_hours_text(value)
    if key == "goodput":
        return percent_text(value)
    if key == "tokens_per_s":
        return count_text(value)
    if key == "value":
        return f"{value:,.4f}"
    return f"{value:,.4g}" if isinstance(value, float) and key == "cost" else str(value)
