"""Import evals of OpenAI's hosted platform: results, and their definition as a suite.

    objects `eval`, `eval.run`, `eval.run.output_item`, in any JSON or JSONL  --> a benchmark per testing criterion
                                                                              --> suite.yaml, items.jsonl

The files are what the API's `retrieve` and `list` calls return, saved as they are. A criterion is a grader with the
keys that graders have here. The scores are those that the platform gave; the grader's digest says so, because its
judges and its rules for white space are not known to be ours.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.base.digest import sha256_of_json
from assay.base.errors import ConfigError, DataError
from assay.evals.imported import Imported, ImportedSuite, plain_name, short_text, unscored
from assay.evals.scorer import Identity
from assay.scoring.template import UnknownVariableError, render
from assay.statistics.benchmark_items import ItemScore

OUTPUT_ITEM = "eval.run.output_item"
_SAMPLING = {"temperature": "temperature", "top_p": "top_p", "seed": "seed", "max_completion_tokens": "max_tokens"}
"""The platform's key -> ours."""


def objects_in(tree: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the eval objects in JSON, at any depth of lists, pages and bundles."""
    if isinstance(tree, Mapping):
        if tree.get("object") in ("eval", "eval.run", OUTPUT_ITEM):
            yield tree
        else:
            for part in tree.values():
                yield from objects_in(part)
    elif isinstance(tree, list):
        for part in tree:
            yield from objects_in(part)


def read_openai_eval(path: Path, found: Sequence[Mapping[str, Any]]) -> list[Imported]:
    """Return a benchmark for each run and criterion. Raises `DataError` if there are no output items."""
    evals, runs = ({part["id"]: part for part in found if part["object"] == kind} for kind in ("eval", "eval.run"))
    by_run: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for part in found:
        if part["object"] == OUTPUT_ITEM:
            by_run.setdefault((part["eval_id"], part["run_id"]), {})[part["id"]] = part
    if not by_run:
        raise DataError(
            f"{path}: it holds evals or runs, but no output items. Save what evals.runs.output_items.list returns, too."
        )
    return [
        imported
        for (eval_id, run_id), outputs in by_run.items()
        for imported in _of_run(list(outputs.values()), evals.get(eval_id, {}), runs.get(run_id, {}), eval_id)
    ]


def _of_run(
    outputs: list[Mapping[str, Any]], definition: Mapping[str, Any], run: Mapping[str, Any], eval_id: str
) -> Iterator[Imported]:
    criteria = {str(part.get("name")): part for part in definition.get("testing_criteria") or []}
    names = criteria or dict.fromkeys(str(result["name"]) for output in outputs for result in output["results"])
    expected = (run.get("result_counts") or {}).get("total")
    title = plain_name(str(definition.get("name") or eval_id))
    for name in names:
        data = [[str(output["datasource_item_id"]), output.get("datasource_item")] for output in outputs]
        identity = Identity(
            benchmark=title if len(names) == 1 else f"{title}.{plain_name(name)}",
            benchmark_sha256=sha256_of_json(["openai-evals-platform", sorted(data, key=lambda pair: pair[0])]),
            grader_sha256=sha256_of_json(["openai-evals-platform", criteria.get(name, name)]),
            prompt_sha256=sha256_of_json(
                ["openai-evals-platform", (run.get("data_source") or {}).get("input_messages")]
            ),
        )
        items = [_item(output, name) for output in outputs]
        if len({item.item_id for item in items}) < len(items):
            items = [item._replace(item_id=f"{item.item_id}.{k}") for k, item in enumerate(items)]
        models = sorted({str((output.get("sample") or {}).get("model", "")) for output in outputs})
        yield Imported(identity, items, run.get("model") or ", ".join(models), "openai-evals-platform", "", expected)


def _item(output: Mapping[str, Any], criterion: str) -> ItemScore:
    item_id, sample = f"{output['datasource_item_id']:06d}", output.get("sample") or {}
    result = next((part for part in output["results"] if _is_of(str(part["name"]), criterion)), None)
    completion = short_text(_last_text(sample.get("output")))
    if sample.get("error"):
        return unscored(item_id, f"the model failed: {short_text(sample['error'])}", completion=completion)
    score = None if result is None else result.get("score")
    if score is None and result is not None and isinstance(result.get("passed"), bool):
        score = float(result["passed"])
    if isinstance(score, int | float) and math.isfinite(score):
        return ItemScore(
            item_id, item_id, float(score), completion=completion, finish_reason=sample.get("finish_reason")
        )
    return unscored(item_id, f"criterion '{criterion}' gave no score", completion=completion)


def _is_of(result_name: str, criterion: str) -> bool:
    """The platform appends a UUID to a criterion's name in results."""
    return result_name == criterion or result_name.startswith(f"{criterion}-")


def _last_text(messages: Any) -> Any:
    return messages[-1].get("content") if isinstance(messages, list) and messages else None


def openai_suite(found: Sequence[Mapping[str, Any]], *, source: Path) -> ImportedSuite:
    """Return the definition of the only eval as a suite whose items have the messages that the model was sent."""
    evals = [part for part in found if part["object"] == "eval"]
    if len(evals) != 1:
        raise ConfigError(
            f"{source}: {len(evals)} objects of kind 'eval' in it. A suite is made of the definition of one."
        )
    run: Mapping[str, Any] = next((part for part in found if part["object"] == "eval.run"), {})
    data_source = run.get("data_source") or {}
    left_out: list[str] = []
    items = list(_items(found, data_source, left_out))
    if not items:
        raise DataError(f"{source}: neither output items nor a run with its data are in it, so the suite has no items.")
    sampling = data_source.get("sampling_params") or {}
    left_out += [
        f"sampling_params.{key} has no counterpart" for key in sampling if key not in _SAMPLING and sampling[key]
    ]
    graders = [
        (str(criterion["name"]), {key: value for key, value in criterion.items() if value is not None and key != "id"})
        for criterion in evals[0]["testing_criteria"]
    ]
    ours = {_SAMPLING[key]: value for key, value in sampling.items() if key in _SAMPLING and value is not None}
    name = str(evals[0].get("name") or evals[0]["id"])
    return ImportedSuite.of(name, graders, items, left_out, sampling=ours, source=source)


def _items(
    found: Sequence[Mapping[str, Any]], data_source: Mapping[str, Any], left_out: list[str]
) -> Iterator[dict[str, Any]]:
    outputs = {part["datasource_item_id"]: part for part in found if part["object"] == OUTPUT_ITEM}
    rows = [
        (output["datasource_item"], (output.get("sample") or {}).get("input")) for _, output in sorted(outputs.items())
    ]
    content = (data_source.get("source") or {}).get("content") or []
    rows = rows or [(row.get("item", {}), None) for row in content]
    template = (data_source.get("input_messages") or {}).get("template") or []
    for index, (fields, sent) in enumerate(rows):
        messages = sent or _rendered(template, fields)
        if not messages:
            left_out.append(f"item {index:,} has no messages")
            continue
        texts = [{"role": str(turn["role"]), "content": _text_of(turn["content"])} for turn in messages]
        yield {**fields, "id": f"{index:06d}", "messages": texts}


def _rendered(template: Sequence[Mapping[str, Any]], fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        return [
            {"role": turn["role"], "content": render(_text_of(turn["content"]), {"item": fields})} for turn in template
        ]
    except UnknownVariableError:
        return []


def _text_of(content: Any) -> str:
    """Return the text of a message, which may be in parts."""
    parts = content if isinstance(content, list) else [content]
    return "".join(str(part.get("text", "")) if isinstance(part, Mapping) else str(part) for part in parts)
