"""Documents of benchmark results: of one evaluation, of a run's checkpoints, and which failure modes they cover."""

import math
import shlex
from collections.abc import Callable, Sequence

import numpy as np

from assay.base.units import number_of
from assay.records.benchmark import BenchmarkResult, Contamination, DetectableEffect
from assay.records.coverage import Coverage, CoverageCell
from assay.records.evaluation import Estimate
from assay.reporting.charts.heat_map import HeatMap, shade_legend
from assay.reporting.charts.plots import LineChart
from assay.reporting.document import (
    Block,
    Cell,
    Document,
    Fact,
    Figure,
    Listing,
    Paragraph,
    Section,
    Table,
    Text,
    TitledTable,
    name,
    number,
)
from assay.reporting.values import device_hours_text, minute_text
from assay.reporting.views.benchmark_history import BenchmarkMatrix, ColumnScores, MatrixColumn, MatrixRow
from assay.reporting.views.runs.series import Series
from assay.reporting.views.statements import hole_text
from assay.statistics.benchmark_history import BestOfMany


def results_document(results: Sequence[BenchmarkResult]) -> Document:
    """Return a row for each result, then notes on failures and contamination."""
    table = Table.of(
        results,
        (number("step"), lambda result: f"{result.step:,}"),
        (name("benchmark"), lambda result: result.benchmark),
        (number("score"), lambda result: f"{result.score.value:.4f}"),
        (number("95% interval"), lambda result: interval_text(result.score)),
        (name(""), lambda result: "" if result.unit == "share" else _unit(result.unit)),
        (number("items"), lambda result: f"{result.num_items:,}"),
        (number("failed"), lambda result: Cell(f"{result.num_failed:,}", "bad" if result.num_failed else None)),
        (number("could detect"), lambda result: _detectable(result.could_detect, result.unit)),
        ("trained on", lambda result: contamination_text(result.contamination)),
    )
    several = len({result.step for result in results}) > 1
    lines = [f"{line} (step {result.step:,})" if several else line for result in results for line in notes(result)]
    blocks = [TitledTable("", "", table), *([Listing(lines)] if lines else [])]
    none = [Paragraph("No results: nothing is due.")]
    return Document(title="", kind="benchmark results", sections=[Section("", blocks if results else none)])


def _detectable(effect: DetectableEffect | None, unit: str) -> str:
    """Return the detectable effect; a share cannot change by more than 1."""
    if effect is None:
        return "-"
    return "nothing" if unit == "share" and effect.effect >= 1.0 else f"{effect.effect:.4f}"


def _unit(unit: str) -> str:
    """Return the unit; items in nats per token are weighted by their tokens."""
    return "loss per token in nats" if unit == "nats a token" else unit


def history_document(matrix: BenchmarkMatrix, *, device_s: float) -> Document:
    """Return the scores of a run's checkpoints, benchmark by benchmark."""
    sections = [
        Section(f"{_column_name(item.column)}  ({_direction(item)})", _scores(matrix, item)) for item in matrix.columns
    ]
    if device_s:
        held = f"evaluation held {device_hours_text(device_s)} apart from training"
        sections.append(Section("", [Paragraph(held)]))
    return Document(title="", kind="benchmark history", sections=sections)


def best_text(best_of_many: BestOfMany) -> str:
    """Return whether the best score may be luck, and how many checkpoints may be the best one."""
    range_text = f"{best_of_many.low:.4f} to {best_of_many.high:.4f}"
    equal = (
        f"The best of {best_of_many.num_scores:,} equally good checkpoints would score {range_text} by luck alone (95%)"
    )
    if best_of_many.may_be_chance:
        return f"{equal}: the best score may be luck. Compare declared checkpoints over seeds."
    among = (
        f"the truly best is one of {best_of_many.num_candidates:,} (95%)"
        if best_of_many.num_candidates > 1
        else "it is the best"
    )
    return f"{equal}. The best score is beyond that, so the checkpoints are not equally good; {among}."


def _best_cell(best_of_many: BestOfMany | None) -> Text:
    if best_of_many is None:
        return Cell("unknown", "open")
    if best_of_many.may_be_chance:
        return Cell("may be luck", "open")
    if best_of_many.num_candidates > 1:
        return Cell(f"one of {best_of_many.num_candidates:,}", "open")
    return Cell("sure", "good")


def matrix_document(
    matrix: BenchmarkMatrix,
    *,
    shown: range,
    column_address: Callable[[MatrixColumn], str] = lambda column: "",
    address: Callable[[MatrixRow, MatrixColumn], str] = lambda row, column: "",
    run_address: Callable[[str], str] = lambda run_id: "",
    links: Sequence[tuple[str, str]] = (),
    campaign: str = "",
) -> Document:
    """Return the best score of each benchmark with its uncertainty, a heat map, and the scores of some checkpoints.

    `shown`: the checkpoints with a row in the table. `column_address`, `address` and `run_address`: of the pages of a
    benchmark, a result and a run. `campaign`: whose checkpoints alone are in the matrix."""
    counts = f"{number_of(len(matrix.rows), 'checkpoint')} on {number_of(len(matrix.columns), 'benchmark')}"
    label = f"Heat map of {counts}: darker is better, each benchmark by itself"
    heat_map = Figure(
        "All scores",
        "Checkpoints from left to right, run by run; each benchmark from its worst score to its best. Bare ground: "
        "not evaluated.",
        HeatMap(matrix, label),
        shade_legend(),
        pages_only=True,
    )
    best = TitledTable.of(
        "",
        "The best of many checkpoints is biased upwards by the selection: decide on declared checkpoints, over seeds.",
        matrix.columns,
        (name("benchmark"), lambda item: Cell(_column_name(item.column), link=column_address(item.column))),
        (number("scores"), lambda item: f"{len(item.values):,}"),
        (number("best"), lambda item: f"{item.values[item.best]:.4f}"),
        (number("95% interval"), lambda item: _ends(item, item.best)),
        (name("checkpoint"), lambda item: _checkpoint(matrix, item, address)),
        (number("luck alone reaches"), lambda item: _best_ends(item.best_of_many)),
        (name("is it the best?"), lambda item: _best_cell(item.best_of_many)),
        ("unit", _direction),
    )
    sections = [Section("Best scores", [best]), Section("All checkpoints", [heat_map], pages_only=True)]
    sections.append(Section("Scores", [TitledTable("", "", _scores_table(matrix, shown, address, run_address))]))
    footer = f"The same as JSON: {_history_command(matrix, campaign=campaign)}"
    return Document(
        title="Benchmarks", kind="benchmarks", subtitle=counts, sections=sections, footer=footer, links=links
    )


def _history_command(matrix: BenchmarkMatrix, **options: str) -> str:
    """Return the command that prints a matrix of one run, of a campaign's runs or of all."""
    run_ids = {row.run_id for row in matrix.rows}
    arguments = [part for name, value in options.items() if value for part in (f"--{name}", value)]
    run = run_ids if len(run_ids) == 1 and not options.get("campaign") else ()
    return shlex.join(["assay", "eval", "history", *run, *arguments, "--json"])


def _scores_table(
    matrix: BenchmarkMatrix,
    shown: range,
    address: Callable[[MatrixRow, MatrixColumn], str],
    run_address: Callable[[str], str],
) -> Table:
    cells: dict[tuple[int, int], Text] = {}
    for at, item in enumerate(matrix.columns):
        for index in range(len(item.rows)):
            if (row := int(item.rows[index])) in shown:
                link = address(matrix.rows[row], item.column)
                cells[row, at] = Cell(f"{item.values[index]:.4f}{_half_width(item, index)}", link=link)
    header = (name("run"), number("step"), *(number(_column_name(item.column)) for item in matrix.columns))
    columns = range(len(matrix.columns))
    heads = [(_run_cell(matrix.rows[row], run_address), f"{matrix.rows[row].step:,}") for row in shown]
    rows = [(*head, *(cells.get((row, at), "·") for at in columns)) for head, row in zip(heads, shown, strict=True)]
    return Table(header, rows)


def benchmark_document(
    matrix: BenchmarkMatrix,
    item: ColumnScores,
    *,
    shown: range,
    address: Callable[[MatrixRow, MatrixColumn], str],
    run_address: Callable[[str], str] = lambda run_id: "",
    links: Sequence[tuple[str, str]] = (),
    campaign: str = "",
) -> Document:
    """Return one benchmark over all checkpoints: scores with intervals, the best so far, and whether it is luck.

    `shown`: the scores with a row in the table."""
    tiles = [
        Fact("best score", f"{item.values[item.best]:.4f}", _ends(item, item.best)),
        Fact("of", _checkpoint(matrix, item, address), "the checkpoint with that score"),
        Fact("is it the best?", _best_cell(item.best_of_many), f"of {number_of(len(item.values), 'score')}"),
    ]
    return Document(
        title=_column_name(item.column),
        kind="benchmark",
        subtitle=_direction(item),
        tiles=tiles,
        sections=[Section("", _scores(matrix, item, shown, address, run_address))],
        footer=f"The same as JSON: {_history_command(matrix, campaign=campaign, benchmark=item.column.benchmark)}",
        links=links,
    )


def _scores(
    matrix: BenchmarkMatrix,
    item: ColumnScores,
    shown: range | None = None,
    address: Callable[[MatrixRow, MatrixColumn], str] = lambda row, column: "",
    run_address: Callable[[str], str] = lambda run_id: "",
) -> list[Block]:
    """Return the curve of a benchmark's scores, whether the best one is luck, and a table of those shown, or of all."""
    checkpoints = [matrix.rows[row] for row in item.rows]
    has_one_run = len({row.run_id for row in checkpoints}) == 1
    at = [row.step for row in checkpoints] if has_one_run else list(range(1, len(checkpoints) + 1))
    values = item.values.tolist()
    lows, highs = (np.where(np.isnan(ends), item.values, ends).tolist() for ends in (item.lows, item.highs))
    series = [Series("score", at, values, (), lows, highs), Series("best so far", at, item.best_values.tolist())]
    x_label = "step" if has_one_run else "evaluation, in order of time"
    chart = LineChart(series, f"{item.column.benchmark}: scores and the best so far", "score", x_label=x_label)
    caption = "Scores with their 95% intervals. The line of the best so far rises by luck, too."
    legend = [("s1", "score, with its interval"), ("s2", "best so far")]
    warning = [Paragraph(best_text(item.best_of_many))] if item.best_of_many is not None else []
    table = TitledTable.of(
        "Scores",
        "",
        range(len(values)) if shown is None else shown,
        (name("run", drop_order=2), lambda index: _run_cell(checkpoints[index], run_address)),
        (number("step"), lambda index: f"{checkpoints[index].step:,}"),
        (name("candidate", drop_order=4), lambda index: checkpoints[index].candidate),
        (number("seed", drop_order=3), lambda index: str(checkpoints[index].seed)),
        (number("score"), lambda index: Cell(f"{values[index]:.4f}", link=address(checkpoints[index], item.column))),
        (number("95% interval"), lambda index: _ends(item, index)),
        (number("best so far"), lambda index: f"{item.best_values[index]:.4f}"),
        (name("new best"), lambda index: "yes" if item.is_best_so_far[index] else ""),
        (number("evaluated (UTC)", drop_order=1), lambda index: minute_text(item.evaluated_s[index])),
    )
    return [Figure("Over time", caption, chart, legend), *warning, table]


def _run_cell(row: MatrixRow, address: Callable[[str], str]) -> Cell:
    return Cell(row.run_id, link=address(row.run_id))


def _column_name(column: MatrixColumn) -> str:
    return f"{column.benchmark}{' (not whole)' if column.is_incomplete else ''}"


def _direction(item: ColumnScores) -> str:
    better = "more is better" if item.higher_is_better else "less is better"
    return f"{_unit(item.unit)}; {better}; {number_of(item.num_items, 'item')}"


def _checkpoint(matrix: BenchmarkMatrix, item: ColumnScores, address: Callable[[MatrixRow, MatrixColumn], str]) -> Cell:
    row = matrix.rows[item.rows[item.best]]
    return Cell(f"{row.run_id}@{row.step:,}", link=address(row, item.column))


def _ends(item: ColumnScores, index: int) -> str:
    low, high = float(item.lows[index]), float(item.highs[index])
    return "-" if math.isnan(low) else f"[{low:.4f}, {high:.4f}]"


def _half_width(item: ColumnScores, index: int) -> str:
    half_width = float(item.highs[index] - item.lows[index]) / 2
    return "" if math.isnan(half_width) else f" ±{half_width:.3f}"


def _best_ends(best_of_many: BestOfMany | None) -> str:
    return "-" if best_of_many is None else f"[{best_of_many.low:.4f}, {best_of_many.high:.4f}]"


def coverage_document(coverage: Coverage, *, address: Callable[[CoverageCell], str] = lambda cell: "") -> Document:
    """Return the coverage matrix, then each hole with its reason. `address`: of a benchmark's results."""
    benchmarks = list(dict.fromkeys((cell.suite, cell.benchmark) for mode in coverage.modes for cell in mode.cells))
    rows = []
    for mode in coverage.modes:
        cells = {(cell.suite, cell.benchmark): cell for cell in mode.cells}
        state = Cell("HOLE", "bad") if mode.is_hole else Cell("covered", "good")
        found = (_coverage_cell(cells.get(benchmark), address) for benchmark in benchmarks)
        rows.append((mode.name, mode.owner, f"{mode.least_effect:g}", *found, state))
    several = len({suite for suite, _ in benchmarks}) > 1
    headings = (f"{suite}: {benchmark}" if several else benchmark for suite, benchmark in benchmarks)
    header = (name("failure mode"), name("owner"), number("least effect"), *map(number, headings), name("state"))
    num_covered = len(coverage.modes) - len(coverage.holes)
    noticed = f"{num_covered} of {len(coverage.modes)} failure modes would be noticed (power {coverage.power:g})"
    holes = [f"{mode.name}: {hole_text(mode)}" for mode in coverage.holes]
    blocks = [TitledTable("", "", Table(header, rows)), *([Listing(holes)] if holes else []), Paragraph(noticed)]
    return Document(title="", kind="coverage", sections=[Section("", blocks)])


def _coverage_cell(cell: CoverageCell | None, address: Callable[[CoverageCell], str]) -> Text:
    if cell is None:
        return "·"
    if cell.state in ("not run", "another version"):
        return Cell(cell.state, "open")
    return Cell(f"finds {cell.could_detect:.3g}", "good" if cell.state == "covered" else "bad", address(cell))


def interval_text(score: Estimate) -> str:
    """`[0.41, 0.47]`, or a dash."""
    return "-" if score.low is None or score.high is None else f"[{score.low:.4f}, {score.high:.4f}]"


def notes(result: BenchmarkResult) -> list[str]:
    """Return notes on failures, truncation and contamination."""
    lines = [
        f"{result.benchmark}: {number_of(count, 'item')} failed: {kind}" for kind, count in result.failures.items()
    ]
    if result.incomplete_reason:
        lines.insert(0, f"{result.benchmark}: not whole: {result.incomplete_reason}; no decision takes it")
    if result.num_prompts_cut:
        lines.append(
            f"{result.benchmark}: of {number_of(result.num_prompts_cut, 'prompt')} the model read the end "
            "only, having no room for the whole. Use a smaller sampling.max_tokens, or a model that takes more."
        )
    if result.num_completions_cut:
        num_scored = result.num_items - result.num_failed
        lines.append(
            f"{result.benchmark}: {result.num_completions_cut:,} of {number_of(num_scored, 'completion')} "
            f"({result.num_completions_cut / num_scored:.0%}) cut at the token limit and scored as they are. "
            "Raise sampling.max_tokens."
        )
    contamination = result.contamination
    if contamination is not None and (text := not_searched_text(contamination)):
        lines.append(f"{result.benchmark}: {text}")
    if contamination is not None and contamination.num_items_found:
        without = (
            ""
            if contamination.score_without is None
            else f"; over the others the score is {contamination.score_without:.4f}"
        )
        named = ", ".join(contamination.items_found[:3]) + (", …" if contamination.num_items_found > 3 else "")
        lines.append(
            f"{result.benchmark}: {number_of(contamination.num_items_found, 'item')} trained on (at least half of "
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
