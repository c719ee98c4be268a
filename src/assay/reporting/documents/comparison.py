"""The document of a comparison. `assay decide compare` prints its brief form and writes all of it as a page."""

from collections.abc import Iterator

from assay.base.clock import utc_text
from assay.reporting.charts.comparison_figures import (
    changes_table,
    cost_table,
    difference_figures,
    overlay_figures,
)
from assay.reporting.document import (
    Block,
    Cell,
    Document,
    Fact,
    Mark,
    Paragraph,
    Section,
    TitledTable,
    Tone,
    Verdict,
    worst,
)
from assay.reporting.values import device_hours_text, estimate_text, interval_text, without_interval
from assay.reporting.views.comparison import ComparisonPage, ComparisonView

TONES: dict[str, Tone] = {"pass": "good", "fail": "bad", "undecided": "open"}


def comparison_document(page: ComparisonPage) -> Document:
    """Return the document of a baseline and its candidates."""
    runs = [candidate.page.view for candidate in page.candidates]
    several = len(runs) > 1
    return Document(
        title=f"{', '.join(run.run_id for run in runs)} against {page.baseline.view.run_id}",
        kind="comparison",
        subtitle=utc_text(max(run.created for run in runs)),
        verdict=comparison_verdict(page),
        tiles=[tile for candidate in page.candidates for tile in _tiles(candidate.compared, several=several)],
        sections=[
            Section("What was changed", list(_changes(page))),
            Section("Is it as good?", list(difference_figures(page))),
            Section("Side by side", list(overlay_figures(page))),
            Section("Speed and cost", [TitledTable("", "", cost_table(page))], pages_only=True),
        ],
        footer="Every number here follows from records in the runs' folders and the ledger; the same facts as JSON: "
        f"assay decide compare {' '.join((page.baseline.view.run_id, *(run.run_id for run in runs)))} --json",
    )


def _tiles(comparison: ComparisonView, *, several: bool) -> Iterator[Fact]:
    of = f", {comparison.candidate_run_id}" if several else ""
    title, ratio = comparison.metric.title, comparison.throughput_ratio
    yield Fact(
        f"{title}{of}",
        f"{comparison.candidate_value:.4f}",
        f"the baseline's {comparison.baseline_value:.4f}, on {comparison.rows_text()}",
    )
    difference = comparison.difference
    interval = (interval_text(difference, signed=True) or without_interval(difference)).strip(", ")
    yield Fact(f"difference of {title}{of}", f"{difference.value:+.4f}", interval)
    yield Fact(f"rule{of}", Cell(comparison.verdict, TONES[comparison.verdict]), f"passes if {_rule(comparison)}")
    yield Fact(f"throughput{of}", f"{ratio:.2f}x" if ratio else "—", "of the baseline's rows per second")
    held, of_baseline = map(device_hours_text, (comparison.candidate_device_s, comparison.baseline_device_s))
    evaluated = (comparison.candidate_evaluation_s, comparison.baseline_evaluation_s)
    own, other = map(device_hours_text, evaluated)
    apart = f"; evaluation apart: {own}, the baseline's {other}" if any(evaluated) else ""
    yield Fact(f"device time of training{of}", held, f"the baseline's {of_baseline}{apart}")
    if comparison.weights_equal or comparison.num_rows:
        yield Fact(f"weights{of}", "equal" if comparison.weights_equal else "differ", "bit for bit, by digest")
    else:
        yield Fact(f"weights{of}", "not known", "a script's checkpoints differ, or were not recorded")


def _rule(comparison: ComparisonView) -> str:
    if not comparison.allowed_loss:
        return "the whole interval is a gain"
    return f"the whole interval loses less than {comparison.allowed_loss:g} (--allowed-loss)"


def _changes(page: ComparisonPage) -> Iterator[Block]:
    for candidate in page.candidates:
        table = changes_table(candidate.compared)
        name = candidate.compared.candidate_run_id
        if table.rows:
            yield TitledTable("" if len(page.candidates) == 1 else name, "", table)
        else:
            yield Paragraph(f"{name} has the baseline's recipe, key for key.")


def comparison_verdict(page: ComparisonPage) -> Verdict:
    """Return the verdict over all candidates; its tone is the worst of theirs."""
    verdicts = {candidate.compared.verdict for candidate in page.candidates}
    by_rule: Tone = "bad" if "fail" in verdicts else "open" if "undecided" in verdicts else "good"
    word = {"bad": "fail", "open": "undecided", "good": "pass"}[by_rule]
    warned = list(dict.fromkeys(warning for candidate in page.candidates for warning in candidate.compared.warnings))
    sentences = [_candidate_text(candidate.compared) for candidate in page.candidates]
    if not all(candidate.compared.weights_equal for candidate in page.candidates):
        sentences.append("One run each: what other seeds would give is unknown.")
    sentences += [f"Warning: {item.text}" for item in warned]
    if not warned:
        return Verdict(by_rule, word, " ".join(sentences))
    rules = ", ".join(dict.fromkeys(item.rule for item in warned))
    marks = (Mark("rule", by_rule, word), Mark("comparison", "bad", rules))
    return Verdict(worst((by_rule, "open")), f"{word}, with warnings", " ".join(sentences), marks)


def _candidate_text(comparison: ComparisonView) -> str:
    name, margin, title = comparison.candidate_run_id, comparison.margin_text(), comparison.metric.title
    changed = estimate_text(comparison.difference, signed=True)
    difference = f"its {title} differs by {changed} on {comparison.rows_text()}"
    if comparison.weights_equal:
        return (
            f"{name} ended with the baseline's weights, bit for bit, so it is as good: "
            f"{title} {comparison.candidate_value:.4f} on {comparison.rows_text()}."
        )
    if comparison.is_better:
        return f"{name} is better than the baseline: {difference}."
    if comparison.verdict == "pass":
        return f"{name} is as good as the baseline, within {margin}: {difference}."
    if comparison.verdict == "fail":
        by_more = f" by more than {margin}" if comparison.allowed_loss else ""
        return f"{name} is worse than the baseline{by_more}: {difference}."
    goal = f"within {margin} of" if comparison.num_rows and comparison.allowed_loss else "as good as"
    undecided = f"Whether {name} is {goal} the baseline is undecided: {difference}"
    if not comparison.num_rows:
        return f"{undecided}."
    if without := without_interval(comparison.difference):
        return f"{undecided}{without}."
    return f"{undecided}. More rows are needed."
