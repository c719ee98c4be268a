"""Report of an eval run (`report_url`) as Markdown."""

from collections.abc import Iterable
from itertools import islice

from assay.records.eval_run import CriterionCounts, EvalItem
from assay.serving.evals.runs import EvalRunState

SHOWN_ITEMS = 20
_CUT = 80


def report_text(state: EvalRunState, items: Iterable[EvalItem]) -> str:
    """Return counts by criterion, usage by model and the first failed items. `items`: in order."""
    created, read = state.created, state.read
    lines = [f"# {_cell(created.name)}", "", f"Run `{created.run_id}` of eval `{created.eval_id}`: {state.status}."]
    if state.failed is not None:
        lines += ["", f"{state.failed.code}: {_cell(state.failed.message)}"]
    lines += ["", "| | passed | failed | errored |", "|---|---|---|---|"]
    total = 0 if read is None else read.num_items
    lines.append(_counts(f"all, of {total:,} items", state.counts))
    for tree in created.testing_criteria:
        name = str(tree.get("name", tree["type"]))
        lines.append(_counts(_cell(name), state.counts_of(name)))
    lines += ["", "| model | requests | prompt tokens | completion tokens |", "|---|---|---|---|"]
    for name, usage in sorted(state.usage.items()):
        counts = f"{usage.invocations:,} | {usage.prompt_tokens:,} | {usage.completion_tokens:,}"
        lines.append(f"| {_cell(name)} | {counts} |")
    lines += ["", f"## The first {SHOWN_ITEMS} that did not pass", ""]
    lines += ["| item | status | sample | why |", "|---|---|---|---|"]
    for item in islice((found for found in items if found.status != "pass"), SHOWN_ITEMS):
        output = "" if item.sample is None else item.sample.text or ""
        lines.append(f"| {item.index} | {item.status} | {_cell(output)} | {_cell(_why(item))} |")
    return "\n".join(lines) + "\n"


def _why(item: EvalItem) -> str:
    if item.sample is not None and item.sample.fault is not None:
        return f"{item.sample.fault.code}: {item.sample.fault.message}"
    reasons = [
        f"{result.name}: {result.fault.code}" if result.fault is not None else f"{result.name}: {result.score:.4g}"
        for result in item.results
        if not result.passed and (result.fault is not None or result.score is not None)
    ]
    return "; ".join(reasons)


def _counts(name: str, counts: CriterionCounts) -> str:
    return f"| {name} | {counts.passed:,} | {counts.failed:,} | {counts.errored:,} |"


def _cell(text: str) -> str:
    """Escape a text for one Markdown table cell."""
    short = text if len(text) <= _CUT else f"{text[:_CUT]}…"
    return "".join(
        f"\\{character}" if character in "\\|`*_<>[]#" else character for character in " ".join(short.split())
    )
