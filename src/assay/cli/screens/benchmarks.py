"""How benchmark results look on a terminal."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from assay.base.clock import utc_text
from assay.cli.screens.drawing import sparkline
from assay.cli.screens.terminal import device_hours_text, stdout
from assay.evaluation.decision.coverage import hole_text
from assay.evaluation.evidence.benchmark_history import BenchmarkHistory
from assay.records.benchmark import BenchmarkResult, Contamination
from assay.records.coverage import Coverage, CoverageCell
from assay.records.evaluation import Estimate


def print_results(results: Sequence[BenchmarkResult]) -> None:
    """A line for each result: score with interval, what it could detect, failures, contamination."""
    if not results:
        stdout().print("No results: nothing is due.")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("step", justify="right")
    table.add_column("benchmark", no_wrap=True)
    for title in ("score", "95% interval"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for title in ("items", "failed", "could detect"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("trained on")
    for result in results:
        table.add_row(*_row(result))
    stdout().print(table)
    for result in results:
        for line in notes(result):
            stdout().print(line)


def print_history(histories: Sequence[BenchmarkHistory], *, device_s: float) -> None:
    """Each benchmark: the curve, then a line for each checkpoint; `*` where the frontier moved."""
    console = stdout()
    for history in histories:
        first = history.points[0].result
        better = "more is better" if first.higher_is_better else "less is better"
        console.print(
            Text(f"{history.benchmark}  ({first.unit}; {better}; {first.num_items:,} items)", style="bold")
        )
        curve = sparkline([point.result.score.value for point in history.points])
        if len(history.points) > 1:
            console.print(f"  {curve}")
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for title in ("  step", "score", "95% interval", "best so far", "", "evaluated (UTC)"):
            table.add_column(title, justify="left" if title == "" else "right", no_wrap=True)
        for point in history.points:
            result = point.result
            table.add_row(
                f"{result.step:,}",
                f"{result.score.value:.4f}",
                interval_text(result.score),
                f"{point.best_value:.4f}",
                "*" if point.is_best_so_far else "",
                utc_text(result.evaluated_s)[:16].replace("T", " "),
            )
        console.print(table)
    if device_s:
        console.print(f"evaluation held {device_hours_text(device_s)} beside training")


def print_coverage(found: Coverage) -> None:
    """The matrix, then every hole with its reason."""
    console = stdout()
    columns = list(dict.fromkeys((cell.suite, cell.benchmark) for mode in found.modes for cell in mode.cells))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("failure mode", "owner"):
        table.add_column(title, no_wrap=True)
    table.add_column("least effect", justify="right")
    for suite, benchmark in columns:
        table.add_column(f"{suite}\n{benchmark}", justify="center")
    table.add_column("")
    for mode in found.modes:
        cells = {(cell.suite, cell.benchmark): cell for cell in mode.cells}
        table.add_row(
            mode.name,
            mode.owner,
            f"{mode.least_effect:g}",
            *(_cell_text(cells.get(column)) for column in columns),
            Text("HOLE", style="bold red") if mode.is_hole else Text("covered", style="green"),
        )
    console.print(table)
    for mode in found.holes:
        console.print(Text.assemble((f"{mode.name}: ", "bold"), hole_text(mode)))
    num_covered = len(found.modes) - len(found.holes)
    console.print(f"{num_covered} of {len(found.modes)} failure modes would be noticed (power {found.power:g})")


def _cell_text(cell: CoverageCell | None) -> Text:
    if cell is None:
        return Text("·", style="bright_black")
    if cell.state in ("not run", "another version"):
        return Text(cell.state, style="yellow")
    detectable = f"{cell.could_detect:.3g}"
    return Text(f"finds {detectable}", style="green" if cell.state == "covered" else "red")


def interval_text(score: Estimate) -> str:
    """`[0.41, 0.47]`, or a dash where there is none."""
    return "-" if score.low is None or score.high is None else f"[{score.low:.4f}, {score.high:.4f}]"


def notes(result: BenchmarkResult) -> list[str]:
    """What a reader must know besides: failures by kind, leaks."""
    lines = [f"  {result.benchmark}: {count} items failed: {kind}" for kind, count in result.failures.items()]
    leak = result.contamination
    if leak is not None and leak.num_items_found:
        without = (
            "" if leak.score_without is None else f"; over the others the score is {leak.score_without:.4f}"
        )
        named = ", ".join(leak.items_found[:3]) + (", …" if leak.num_items_found > 3 else "")
        lines.append(
            f"  {result.benchmark}: {leak.num_items_found} items were trained on (at least half of their "
            f"{leak.ngram}-grams): {named}{without}"
        )
    return lines


def contamination_text(leak: Contamination | None) -> str:
    """`0.4% of 13-grams`."""
    return "not known" if leak is None else f"{leak.overlap:.2%} of {leak.ngram}-grams"


def _row(result: BenchmarkResult) -> list[str | Text]:
    detectable = "-" if result.could_detect is None else f"{result.could_detect.effect:.4f}"
    return [
        f"{result.step:,}",
        result.benchmark,
        f"{result.score.value:.4f}",
        interval_text(result.score),
        "" if result.unit == "share" else result.unit,
        f"{result.num_items:,}",
        Text(f"{result.num_failed:,}", style="red" if result.num_failed else ""),
        detectable,
        contamination_text(result.contamination),
    ]
