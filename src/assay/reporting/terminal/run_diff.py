"""The differences between two runs on a terminal."""

from collections.abc import Callable, Sequence
from typing import Any

from assay.base.units import count_text, number_of, percent_text
from assay.reporting.terminal.terminal import name, number, stdout, table_of
from assay.reporting.values import device_hours_text
from assay.reporting.views.run_diff import DifferenceView, RunDiffView


def print_diff(diff: RunDiffView) -> None:
    """Print the differences in recipe, environment and data, then the outcome."""
    screen = stdout()
    screen.print(f"from {diff.before} to {diff.after}", style="bold")
    for title, differences in (("recipe", diff.recipe), ("environment", diff.environment)):
        if differences:
            screen.print("", table_of_differences(title, differences, str))
        else:
            screen.print(f"\n{title}: the same")
    screen.print(f"\ndata: {_data_text(diff)}")
    screen.print(f"weights: {'equal, bit for bit' if diff.weights_equal else 'other ones'}; {_curve_text(diff)}")
    if diff.loss:
        losses = table_of(
            diff.loss,
            (number("step"), lambda loss: f"{loss.step:,}"),
            (number("loss before"), lambda loss: f"{loss.before:.4f}"),
            (number("after"), lambda loss: f"{loss.after:.4f}"),
            (number("difference"), lambda loss: f"{loss.after - loss.before:+.4f}"),
        )
        screen.print(losses)
    known = [difference for difference in diff.outcome if not (difference.before is None and difference.after is None)]
    screen.print("", table_of_differences("outcome", known, _outcome_name))


def table_of_differences(title: str, differences: Sequence[DifferenceView], name_of: Callable[[str], str]) -> Any:
    """Name, before, after."""
    return table_of(
        differences,
        (name(title), lambda loss: name_of(loss.name)),
        ("before", lambda loss: _value_text(loss.name, loss.before)),
        ("after", lambda loss: _value_text(loss.name, loss.after)),
    )


def _outcome_name(key: str) -> str:
    return {
        "device_seconds": "device time of training",
        "evaluation_seconds": "evaluation, apart",
        "tokens_per_s": "tokens a second",
    }.get(key, key.replace("_", " "))


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
        return "the loss of every step that both made is equal, bit for bit"
    return f"the loss differs from step {diff.first_different_step:,} on"


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
