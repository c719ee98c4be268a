"""Documents of benchmark results: of one evaluation, of a run's checkpoints, and which failure modes they cover."""

from collections.abc import Iterator, Sequence

from assay.base.units import number_of
from assay.records.benchmark import BenchmarkResult, Contamination, DetectableEffect
from assay.records.coverage import Coverage, CoverageCell
from assay.records.evaluation import Estimate
from assay.reporting.charts.plots import LineChart
from assay.reporting.document import (
    Cell,
    Document,
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
from assay.reporting.views.series import Series
from assay.reporting.views.statements import hole_text
from assay.statistics.benchmark_history import BenchmarkHistory


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


def history_document(histories: Sequence[BenchmarkHistory], *, device_s: float) -> Document:
    """Return each benchmark's scores by checkpoint; `*` marks a new best."""
    sections = [Section(_benchmark_text(history.points[0].result), list(_history(history))) for history in histories]
    if device_s:
        held = f"evaluation held {device_hours_text(device_s)} apart from training"
        sections.append(Section("", [Paragraph(held)]))
    return Document(title="", kind="benchmark history", sections=sections)


def _benchmark_text(first: BenchmarkResult) -> str:
    better = "more is better" if first.higher_is_better else "less is better"
    better += "; not whole" if first.incomplete_reason else ""
    return f"{first.benchmark}  ({_unit(first.unit)}; {better}; {number_of(first.num_items, 'item')})"


def _history(history: BenchmarkHistory) -> Iterator[Figure | TitledTable]:
    scores = [(point.result.step, point.result.score.value) for point in history.points]
    if len(scores) > 1:
        series = Series(history.benchmark, [step for step, _ in scores], [score for _, score in scores])
        yield Figure("score", "", LineChart([series], f"{history.benchmark} by step", "score"))
    yield TitledTable.of(
        "",
        "",
        history.points,
        (number("step"), lambda point: f"{point.result.step:,}"),
        (number("score"), lambda point: f"{point.result.score.value:.4f}"),
        (number("95% interval"), lambda point: interval_text(point.result.score)),
        (number("best so far"), lambda point: f"{point.best_value:.4f}"),
        (name(""), lambda point: "*" if point.is_best_so_far else ""),
        (number("evaluated (UTC)"), lambda point: minute_text(point.result.evaluated_s)),
    )


def coverage_document(coverage: Coverage) -> Document:
    """Return the coverage matrix, then each hole with its reason."""
    benchmarks = list(dict.fromkeys((cell.suite, cell.benchmark) for mode in coverage.modes for cell in mode.cells))
    rows = []
    for mode in coverage.modes:
        cells = {(cell.suite, cell.benchmark): cell for cell in mode.cells}
        state = Cell("HOLE", "bad") if mode.is_hole else Cell("covered", "good")
        found = (_coverage_cell(cells.get(benchmark)) for benchmark in benchmarks)
        rows.append((mode.name, mode.owner, f"{mode.least_effect:g}", *found, state))
    several = len({suite for suite, _ in benchmarks}) > 1
    headings = (f"{suite}: {benchmark}" if several else benchmark for suite, benchmark in benchmarks)
    header = (name("failure mode"), name("owner"), number("least effect"), *map(number, headings), name(""))
    num_covered = len(coverage.modes) - len(coverage.holes)
    noticed = f"{num_covered} of {len(coverage.modes)} failure modes would be noticed (power {coverage.power:g})"
    holes = [f"{mode.name}: {hole_text(mode)}" for mode in coverage.holes]
    blocks = [TitledTable("", "", Table(header, rows)), *([Listing(holes)] if holes else []), Paragraph(noticed)]
    return Document(title="", kind="coverage", sections=[Section("", blocks)])


def _coverage_cell(cell: CoverageCell | None) -> Text:
    if cell is None:
        return "·"
    if cell.state in ("not run", "another version"):
        return Cell(cell.state, "open")
    return Cell(f"finds {cell.could_detect:.3g}", "good" if cell.state == "covered" else "bad")


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
