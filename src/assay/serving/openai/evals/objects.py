"""Evals, runs and output items as the SDK's types define them; extensions are in `x_assay`."""

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from assay.records.eval_run import CriterionCounts, CriterionResult, EvalItem, GradedSample, ItemFault, ModelUsage
from assay.serving.evals.data_source import DEFAULT_SEED
from assay.serving.evals.evals import EvalState
from assay.serving.evals.runs import EvalRunState
from assay.serving.ids import item_id
from assay.serving.openai.objects import cost_object

_SAMPLE_SCHEMA = {
    "type": "object",
    "properties": {"output_text": {"type": "string"}, "output_json": {}, "choices": {"type": "array"}},
}


def eval_object(state: EvalState) -> dict[str, Any]:
    """`EvalCreateResponse` and others with the same fields."""
    created = state.created
    properties = {"item": created.item_schema}
    if created.has_samples:
        properties["sample"] = _SAMPLE_SCHEMA
    return {
        "id": created.eval_id,
        "object": "eval",
        "created_at": int(created.at_s),
        "name": state.name,
        "metadata": state.metadata,
        "data_source_config": {
            "type": "custom",
            "schema": {"type": "object", "properties": properties, "required": ["item"]},
        },
        "testing_criteria": list(created.testing_criteria),
    }


def run_object(state: EvalRunState, address: str, spent_reason: Callable[[str], str | None]) -> dict[str, Any]:
    """`RunCreateResponse` and others with the same fields.

    `address`: the API's base URL. `why_spent`: project -> why it may spend nothing more.
    """
    created, counts = state.created, state.counts
    names = [str(usage.get("name", usage["type"])) for usage in created.testing_criteria]
    failed = state.failed if state.status == "failed" else None
    return {
        "id": created.run_id,
        "object": "eval.run",
        "created_at": int(created.at_s),
        "eval_id": created.eval_id,
        "name": created.name,
        "metadata": created.metadata,
        "data_source": created.data_source,
        "model": created.model,
        "status": state.status,
        "error": None if failed is None else {"code": failed.code, "message": failed.message},
        "result_counts": {**_counts(counts), "total": 0 if state.read is None else state.read.num_items},
        "per_testing_criteria_results": [
            {"testing_criteria": name, **_counts(state.counts_of(name))} for name in names
        ],
        "per_model_usage": [_usage(name, usage) for name, usage in sorted(state.usage.items())],
        "report_url": f"{address}/x/evals/{created.eval_id}/runs/{created.run_id}/report",
        "x_assay": {
            "finished_at": None if state.ended_s is None else int(state.ended_s),
            **cost_object(state, spent_reason),
        },
    }


def item_object(state: EvalRunState, found: EvalItem) -> dict[str, Any]:
    """`OutputItemListResponse` and others with the same fields."""
    created = state.created
    return {
        "id": item_id(created.run_id, found.index),
        "object": "eval.run.output_item",
        "created_at": int(found.at_s),
        "eval_id": created.eval_id,
        "run_id": created.run_id,
        "datasource_item": found.item,
        "datasource_item_id": found.index,
        "status": found.status,
        "results": [_result(result) for result in found.results],
        "sample": _sample(created.model, created.data_source, found.sample),
    }


def _counts(counts: CriterionCounts) -> dict[str, int]:
    return {"passed": counts.passed, "failed": counts.failed, "errored": counts.errored}


def _usage(name: str, usage: ModelUsage) -> dict[str, Any]:
    return {
        "model_name": name,
        "invocation_count": usage.invocations,
        **_tokens(usage.prompt_tokens, usage.completion_tokens),
    }


def _tokens(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "cached_tokens": 0,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def _result(result: CriterionResult) -> dict[str, Any]:
    return {
        "name": result.name,
        "type": result.grader_type,
        "passed": result.passed,
        "score": result.score,
        "sample": None,
        "x_assay": {"error": _fault(result.fault), "label": result.label},
    }


def _sample(model: str, source: Mapping[str, Any], sample: GradedSample | None) -> dict[str, Any]:
    params = source.get("sampling_params") or {}
    graded = sample or GradedSample()
    output = [] if graded.text is None else [{"role": "assistant", "content": graded.text}]
    return {
        "error": _fault(graded.fault),
        "finish_reason": graded.finish_reason,
        "input": list(graded.messages),
        "output": output,
        "model": model,
        "max_completion_tokens": params.get("max_completion_tokens"),
        "seed": params.get("seed") or DEFAULT_SEED,
        "temperature": 1.0 if params.get("temperature") is None else params["temperature"],
        "top_p": params.get("top_p") or 1.0,
        "usage": _tokens(graded.prompt_tokens, graded.completion_tokens),
    }


def _fault(fault: ItemFault | None) -> dict[str, str] | None:
    return None if fault is None else {"code": fault.code, "message": fault.message}


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
    lines.append(_counts_row(f"all, of {total:,} items", state.counts))
    for tree in created.testing_criteria:
        name = str(tree.get("name", tree["type"]))
        lines.append(_counts_row(_cell(name), state.counts_of(name)))
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


def _counts_row(name: str, counts: CriterionCounts) -> str:
    return f"| {name} | {counts.passed:,} | {counts.failed:,} | {counts.errored:,} |"


def _cell(text: str) -> str:
    """Escape a text for one Markdown table cell."""
    short = text if len(text) <= _CUT else f"{text[:_CUT]}…"
    return "".join(
        f"\\{character}" if character in "\\|`*_<>[]#" else character for character in " ".join(short.split())
    )
