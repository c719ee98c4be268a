"""Benchmark results on a terminal."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from assay.base.units import number_of
from assay.records.benchmark import BenchmarkResult, Contamination, DetectableEffect
from assay.records.coverage import Coverage, CoverageCell
from assay.records.evaluation import Estimate
from assay.reporting.terminal.drawing import sparkline
from assay.reporting.terminal.terminal import name, number, stdout, table_of
from assay.reporting.values import device_hours_text, minute_text
from assay.reporting.views.statements import hole_text
from assay.statistics.benchmark_history import BenchmarkHistory


def print_results(results: Sequence[BenchmarkResult]) -> None:
    """Print a row for each result, then notes on failures and contamination."""
    if not results:
        stdout().print("No results: nothing is due.")
        return
    table = table_of(
        results,
        (number("step"), lambda result: f"{result.step:,}"),
        (name("benchmark"), lambda result: result.benchmark),
        (number("score"), lambda result: f"{result.score.value:.4f}"),
        (number("95% interval"), lambda result: interval_text(result.score)),
        (name(""), lambda result: "" if result.unit == "share" else _unit(result.unit)),
        (number("items"), lambda result: f"{result.num_items:,}"),
        (number("failed"), lambda result: Text(f"{result.num_failed:,}", style="red" if result.num_failed else "")),
        (
            number("could detect"),
            lambda result: _detectable(result.could_detect, result.unit),
        ),
        ("trained on", lambda result: contamination_text(result.contamination)),
    )
    stdout().print(table)
    several = len({result.step for result in results}) > 1
    for result in results:
        for line in notes(result):
            stdout().print(f"{line} (step {result.step:,})" if several else line)


def _detectable(effect: DetectableEffect | None, unit: str) -> str:
    """Return the detectable effect; a share cannot change by more than 1."""
    if effect is None:
        return "-"
    return "nothing" if unit == "share" and effect.effect >= 1.0 else f"{effect.effect:.4f}"


def _unit(unit: str) -> str:
    """Return the unit; items in nats per token are weighted by their tokens."""
    return "loss per token in nats" if unit == "nats a token" else unit


def print_history(histories: Sequence[BenchmarkHistory], *, device_s: float) -> None:
    """Print each benchmark's scores by checkpoint; `*` marks a new best."""
    console = stdout()
    for history in histories:
        first = history.points[0].result
        better = "more is better" if first.higher_is_better else "less is better"
        better += "; not whole" if first.incomplete_reason else ""
        console.print(
            Text(
                f"{history.benchmark}  ({_unit(first.unit)}; {better}; {number_of(first.num_items, 'item')})",
                style="bold",
            )
        )
        curve = sparkline([point.result.score.value for point in history.points])
        if len(history.points) > 1:
            console.print(f"  {curve}")
        table = table_of(
            history.points,
            (number("  step"), lambda point: f"{point.result.step:,}"),
            (number("score"), lambda point: f"{point.result.score.value:.4f}"),
            (number("95% interval"), lambda point: interval_text(point.result.score)),
            (number("best so far"), lambda point: f"{point.best_value:.4f}"),
            (name(""), lambda point: "*" if point.is_best_so_far else ""),
            (number("evaluated (UTC)"), lambda point: minute_text(point.result.evaluated_s)),
        )
        console.print(table)
    if device_s:
        console.print(f"evaluation held {device_hours_text(device_s)} apart from training")


def print_coverage(coverage: Coverage) -> None:
    """Print the coverage matrix, then each hole with its reason."""
    console = stdout()
    columns = list(dict.fromkeys((cell.suite, cell.benchmark) for mode in coverage.modes for cell in mode.cells))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("failure mode", "owner"):
        table.add_column(title, no_wrap=True)
    table.add_column("least effect", justify="right")
    for suite, benchmark in columns:
        table.add_column(f"{suite}\n{benchmark}", justify="center")
    table.add_column("")
    for mode in coverage.modes:
        cells = {(cell.suite, cell.benchmark): cell for cell in mode.cells}
        table.add_row(
            mode.name,
            mode.owner,
            f"{mode.least_effect:g}",
            *(_cell_text(cells.get(column)) for column in columns),
            Text("HOLE", style="bold red") if mode.is_hole else Text("covered", style="green"),
        )
    console.print(table)
    for mode in coverage.holes:
        console.print(Text.assemble((f"{mode.name}: ", "bold"), hole_text(mode)))
    num_covered = len(coverage.modes) - len(coverage.holes)
    console.print(f"{num_covered} of {len(coverage.modes)} failure modes would be noticed (power {coverage.power:g})")


def _cell_text(cell: CoverageCell | None) -> Text:
    if cell is None:
        return Text("·", style="bright_black")
    if cell.state in ("not run", "another version"):
        return Text(cell.state, style="yellow")
    detectable = f"{cell.could_detect:.3g}"
    return Text(f"finds {detectable}", style="green" if cell.state == "covered" else "red")


def interval_text(score: Estimate) -> str:
    """`[0.41, 0.47]`, or a dash."""
    return "-" if score.low is None or score.high is None else f"[{score.low:.4f}, {score.high:.4f}]"


def notes(result: BenchmarkResult) -> list[str]:
    """Return notes on failures, truncation and contamination."""
    lines = [
        f"  {result.benchmark}: {number_of(count, 'item')} failed: {kind}" for kind, count in result.failures.items()
    ]
    if result.incomplete_reason:
        lines.insert(0, f"  {result.benchmark}: not whole: {result.incomplete_reason}; no decision takes it")
    if result.num_prompts_cut:
        lines.append(
            f"  {result.benchmark}: of {number_of(result.num_prompts_cut, 'prompt')} the model read the end "
            "only, having no room for the whole. Use a smaller sampling.max_tokens, or a model that takes more."
        )
    if result.num_completions_cut:
        num_scored = result.num_items - result.num_failed
        lines.append(
            f"  {result.benchmark}: {result.num_completions_cut:,} of {number_of(num_scored, 'completion')} "
            f"({result.num_completions_cut / num_scored:.0%}) cut at the token limit and scored as they are. "
            "Raise sampling.max_tokens."
        )
    contamination = result.contamination
    if contamination is not None and (text := not_searched_text(contamination)):
        lines.append(f"  {result.benchmark}: {text}")
    if contamination is not None and contamination.num_items_found:
        without = (
            ""
            if contamination.score_without is None
            else f"; over the others the score is {contamination.score_without:.4f}"
        )
        named = ", ".join(contamination.items_found[:3]) + (", …" if contamination.num_items_found > 3 else "")
        lines.append(
            f"  {result.benchmark}: {number_of(contamination.num_items_found, 'item')} trained on (at least half of "
            f"their {contamination.ngram}-grams): {named}{without}"
        )
    return lines


def contamination_text(contamination: Contamination | None) -> str:
    """`0.4% of 13-grams`, or why it is not known."""
    if contamination is None:
        return "not known"
    if contamination.overlap is None:
        return f"not searched: under {contamination.ngram} words"
    return f"{contamination.overlap:.2%} of {contamination.ngram}-grams"


def not_searched_text(contamination: Contamination) -> str:
    """Return how many items were too short to be searched; empty if none."""
    if contamination.num_items == contamination.num_items_searched:
        return ""
    num_short = contamination.num_items - contamination.num_items_searched
    return (
        f"{num_short:,} of {number_of(contamination.num_items, 'item')} have no {contamination.ngram} words "
        "of their own: whether they were trained on is not known"
    )
