"""Import Promptfoo's results, and its configuration as a suite: the form in which OpenAI's hosted evals are exported.

    results.json            results.results: an output and its score for each test, prompt and provider
    promptfooconfig.yaml    prompts, tests (vars, assert), defaultTest                --> suite.yaml, items.jsonl

Assertions on text have counterparts among the graders; the others (scripts, judges with prompts of Promptfoo) do not,
and are named.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from assay.base.digest import canonical_json, sha256_of_json
from assay.base.errors import ConfigError, DataError
from assay.evals.imported import Imported, ImportedSuite, plain_name, short_text, unscored
from assay.evals.scorer import Identity
from assay.statistics.benchmark_items import ItemScore

_OPERATIONS = {"equals": "eq", "not-equals": "ne", "contains": "like", "icontains": "ilike"}
_SIMILARITIES = {"bleu": "bleu", "gleu": "gleu", "meteor": "meteor", "rouge-n": "rouge_1"}
_VARIABLE = re.compile(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}")
_OUTPUT = "{{ sample.output_text }}"


def is_results(tree: Any) -> bool:
    """Return whether JSON is a results file of Promptfoo."""
    return isinstance(tree, Mapping) and isinstance(tree.get("results"), Mapping) and "results" in tree["results"]


def read_promptfoo(path: Path, tree: Mapping[str, Any]) -> list[Imported]:
    """Return a benchmark for each provider and prompt."""
    config = tree.get("config") or {}
    groups: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for result in tree["results"]["results"]:
        provider = result["provider"]
        name = provider.get("label") or provider["id"] if isinstance(provider, Mapping) else provider
        groups.setdefault((str(name), int(result.get("promptIdx", 0))), []).append(result)
    if not groups:
        raise DataError(f"{path}: it holds no results.")
    num_prompts = len({prompt for _, prompt in groups})
    title = plain_name(str(config.get("description") or path.stem))
    return [
        Imported(
            Identity(
                benchmark=title if num_prompts == 1 else f"{title}.prompt{prompt}",
                benchmark_sha256=sha256_of_json(
                    ["promptfoo", sorted(canonical_json(_vars(result)) for result in results)]
                ),
                grader_sha256=sha256_of_json(["promptfoo", _assertions(results[0].get("testCase") or {})]),
                prompt_sha256=sha256_of_json(["promptfoo", config.get("prompts")]),
            ),
            [_item(result, index) for index, result in enumerate(results)],
            provider,
            "promptfoo",
        )
        for (provider, prompt), results in groups.items()
    ]


def _item(result: Mapping[str, Any], index: int) -> ItemScore:
    item_id = f"{int(result.get('testIdx', index)):06d}"
    completion = short_text((result.get("response") or {}).get("output"))
    # Promptfoo gives 0 where a provider or grader failed; such an item has no score.
    if result.get("failureReason") == 2 or (result.get("error") and completion is None):
        return unscored(item_id, f"the provider failed: {short_text(result.get('error'))}", completion=completion)
    return ItemScore(item_id, item_id, float(result["score"]), completion=completion)


def _vars(result: Mapping[str, Any]) -> Any:
    return result.get("vars") or (result.get("testCase") or {}).get("vars")


def _assertions(test: Mapping[str, Any]) -> list[Any]:
    return list(test.get("assert") or [])


def promptfoo_suite(config: Mapping[str, Any], *, source: Path) -> ImportedSuite:
    """Return a configuration with inline prompts and tests as a suite; each assertion is a benchmark."""
    prompts, tests, default = config.get("prompts") or [], config.get("tests"), config.get("defaultTest") or {}
    if not isinstance(tests, list) or any(not isinstance(test, Mapping) for test in tests) or not tests:
        raise ConfigError(f"{source}: its tests are in another file. Write them into the configuration first.")
    left_out = [f"{len(prompts) - 1} more prompts: a suite has one"] if len(prompts) > 1 else []
    turns = _messages(prompts[0] if prompts else "", source)
    defaults = default.get("vars") or {}
    items = []
    for index, test in enumerate(tests):
        fields = {**defaults, **(test.get("vars") or {})}
        texts = [{"role": turn["role"], "content": _filled(str(turn["content"]), fields)} for turn in turns]
        items.append({**fields, "id": f"{index:06d}", "messages": texts})
    assertions = _assertions(default)
    varying = [_assertions(test) for test in tests]
    if all(own == varying[0] for own in varying):
        assertions += varying[0]
    elif len({len(own) for own in varying}) == 1 and all(_kinds(own) == _kinds(varying[0]) for own in varying):
        # The same checks with other values: the values become fields of the items.
        for k, first in enumerate(varying[0]):
            for item, own in zip(items, varying, strict=True):
                item[f"expected_{k}"] = str(own[k].get("value", ""))
            assertions.append({**first, "value": f"{{{{ expected_{k} }}}}"})
    else:
        left_out.append("assertions that differ from test to test")
    graders = list(_graders(assertions, left_out))
    if not graders:
        raise ConfigError(
            f"{source}: none of its assertions has a counterpart: {'; '.join(left_out) or 'there are none'}."
        )
    name = str(config.get("description") or source.stem)
    return ImportedSuite.of(name, graders, items, left_out, sampling={}, source=source)


def _kinds(assertions: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [assertion.get("type") for assertion in assertions]


def _graders(assertions: Sequence[Mapping[str, Any]], left_out: list[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for index, assertion in enumerate(assertions):
        kind = str(assertion.get("type"))
        reference = _VARIABLE.sub(r"{{ item.\1 }}", str(assertion.get("value", "")))
        grader: dict[str, Any] = {"input": _OUTPUT, "reference": reference}
        if kind in _OPERATIONS:
            grader |= {"type": "string_check", "operation": _OPERATIONS[kind]}
        elif kind in _SIMILARITIES:
            grader |= {"type": "text_similarity", "evaluation_metric": _SIMILARITIES[kind]}
        else:
            left_out.append(f"assertion {index + 1}, of type '{kind}', has no counterpart: write it as a grader")
            continue
        yield str(assertion.get("metric") or f"{kind}-{index + 1}"), grader


def _messages(prompt: Any, source: Path) -> list[Mapping[str, Any]]:
    """Return the messages of a prompt: a text, JSON or YAML of messages, or an object with one of these."""
    raw = prompt.get("raw") or prompt.get("label") if isinstance(prompt, Mapping) else prompt
    if not isinstance(raw, str) or not raw or raw.startswith("file://"):
        raise ConfigError(f"{source}: its prompt is not in the configuration. Write it there first.")
    try:
        tree = yaml.safe_load(raw)
    except yaml.YAMLError:
        tree = raw
    is_chat = isinstance(tree, list) and all(
        isinstance(turn, Mapping) and {"role", "content"} <= turn.keys() for turn in tree
    )
    return tree if is_chat and tree else [{"role": "user", "content": raw}]


def _filled(text: str, fields: Mapping[str, Any]) -> str:
    return _VARIABLE.sub(lambda match: str(fields.get(match[1], match[0])), text)
