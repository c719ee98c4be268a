"""Turns a hosted fine-tuning job of OpenAI into a dataset, a recipe for a model folder, and a suite.

    job.json, training and validation JSONL --> rows.jsonl, dataset/ --> recipe.yaml
    validation rows, recorded answers       --> items.jsonl, suite.yaml: new model against old answers, item by item

The score of `against-old` is 0.5 plus half of the difference: the similarity of the new model's answer to the reference
minus that of the recorded one. So `assay eval run` prints its mean with an interval: 0.5 is as good as the old model.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from assay.base.config import LoadedConfig, validated
from assay.base.errors import ConfigError, DataError
from assay.data.dataset.build import build_dataset
from assay.data.dataset.fields import BuildConfig
from assay.data.dataset.tokens import TOKENIZER_FILE
from assay.evals.config import Suite
from assay.evals.openai_eval import OUTPUT_ITEM, objects_in
from assay.records.dataset import Format
from assay.scoring.json_lines import json_lines, json_value
from assay.workflows.new_recipe import LANES, LanguageMethod, new_recipe
from assay.workflows.run import check_recipe

RECIPE_FILE = "recipe.yaml"
"""Written last, so that a folder that has one is whole."""
HELD_OUT = "held_out"
_METHODS: dict[str, tuple[LanguageMethod, Format]] = {"supervised": ("sft", "chat"), "dpo": ("dpo", "pairs")}
"""The job's method -> ours, and the format of its rows."""
_DEFAULT_BATCH = 8
_OUTPUT = "{{ sample.output_text }}"
_SIMILAR = {"type": "text_similarity", "evaluation_metric": "fuzzy_match", "reference": "{{ item.reference }}"}
_SAME = {"type": "string_check", "operation": "eq", "reference": "{{ item.reference }}"}


class ImportedJob(NamedTuple):
    """What was written."""

    num_rows: int
    num_items: int
    """Items of the suite; 0 if there is none."""
    notes: list[str]
    """Sentences on what has no counterpart here."""


def import_job(
    job_file: Path,
    *,
    model: Path,
    training: Path,
    validation: Path | None,
    old_outputs: Path | None,
    chat_template: str | None,
    out: Path,
) -> ImportedJob:
    """Write `dataset/`, `recipe.yaml` and, given validation rows or answers, `suite.yaml` into the folder `out`."""
    job = json_value(job_file.read_bytes())
    if not isinstance(job, dict) or job.get("object") != "fine_tuning.job":
        raise ConfigError(f"{job_file}: not a fine-tuning job. Save what fine_tuning.jobs.retrieve returns.")
    method_tree = job.get("method") or {"type": "supervised"}
    kind = str(method_tree.get("type"))
    if kind not in _METHODS:
        raise ConfigError(
            f"{job_file}: jobs of method '{kind}' are not imported. Build its file with 'assay data build --format "
            "prompts', and give the job's grader to a GRPO recipe (docs/methods.md)."
        )
    method, row_format = _METHODS[kind]
    hyperparameters = (method_tree.get(kind) or {}).get("hyperparameters") or job.get("hyperparameters") or {}
    notes = [f"the job's base model was {job.get('model')}; the new one starts from {model}"]
    rows = [{**row, HELD_OUT: False} for row in _rows(training)]
    held_out = [] if validation is None else list(_rows(validation))
    rows += [{**row, HELD_OUT: True} for row in held_out]
    items = list(_items(held_out, _recorded(old_outputs), notes)) if row_format == "chat" else []
    if not items:
        notes.append("no suite: it needs a validation file of a supervised job")
    if (out / RECIPE_FILE).exists():
        raise ConfigError(f"{out / RECIPE_FILE}: exists already. Name another folder.")
    out.mkdir(parents=True, exist_ok=True)
    rows_file = out / "rows.jsonl"
    rows_file.write_text(_lines(rows), encoding="utf-8")
    config = BuildConfig(
        tokenizer=str(model / TOKENIZER_FILE),
        format=row_format,
        chat_template=chat_template,
        label_field=None,
        metadata_fields=(HELD_OUT,),
        key_is_text=True,
    )
    manifest = build_dataset([rows_file], out / "dataset", config, name=str(job.get("id", "job")))
    recipe = _recipe(out / "dataset", model, method, hyperparameters, job, notes, has_validation=bool(held_out))
    if items:
        _write_suite(out, items)
    (out / RECIPE_FILE).write_text(recipe, encoding="utf-8")
    return ImportedJob(manifest.num_rows, len(items), notes)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    return iter(json_lines(path.read_bytes(), path, of_what="rows").values())


def _lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _recipe(
    dataset: Path,
    model: Path,
    method: LanguageMethod,
    hyperparameters: Mapping[str, Any],
    job: Mapping[str, Any],
    notes: list[str],
    *,
    has_validation: bool,
) -> str:
    """Return a first recipe for the dataset with the job's numbers; `auto` keeps what the first recipe has."""
    numbers = {key: value for key, value in hyperparameters.items() if isinstance(value, int | float)}
    name = str(job.get("user_provided_suffix") or job.get("id") or "job")
    epochs = int(numbers["n_epochs"]) if "n_epochs" in numbers else None
    tree = yaml.safe_load(new_recipe(dataset, name=name, model=str(model), epochs=epochs, method=method).text)
    if has_validation:
        tree["data"]["split"] = {"type": "column", "column": HELD_OUT, "validation": ["true"]}
    if "batch_size" in numbers:
        tree["loader"]["global_batch_size"] = batch = -(-int(numbers["batch_size"]) // LANES) * LANES
        if batch != numbers["batch_size"]:
            notes.append(f"batch_size {numbers['batch_size']} became {batch}, a multiple of {LANES} lanes")
    if "learning_rate_multiplier" in numbers:
        rate = float(tree["trainer"]["optimizer"]["learning_rate"]) * numbers["learning_rate_multiplier"]
        tree["trainer"]["optimizer"]["learning_rate"] = rate
        notes.append(
            f"learning_rate is {rate:g}: the multiplier {numbers['learning_rate_multiplier']:g} times our rule of thumb"
        )
    if "beta" in numbers:
        tree["method"].setdefault("loss", {})["beta"] = numbers["beta"]
    if isinstance(job.get("seed"), int):
        tree["seed"] = job["seed"]
    check_recipe(LoadedConfig(tree, {}))
    head = f"# Made of fine-tuning job {job.get('id')} by 'assay train import'.\n"
    return head + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)


def _recorded(old_outputs: Path | None) -> dict[str, str]:
    """Return recorded answers by prompt, from conversations that end with one, or output items of an eval."""
    recorded: dict[str, str] = {}
    for row in () if old_outputs is None else _rows(old_outputs):
        for output in objects_in(row):
            if output["object"] == OUTPUT_ITEM and (output.get("sample") or {}).get("output"):
                recorded[_key(output["sample"]["input"])] = str(output["sample"]["output"][-1].get("content"))
        if "messages" in row:
            prompt, reference = _prompt_and_reference(row)
            recorded[_key(prompt)] = reference
    if old_outputs is not None and not recorded:
        raise DataError(
            f"{old_outputs}: no answers in it. Each line needs 'messages' that end with the old model's answer."
        )
    return recorded


def _prompt_and_reference(row: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str]:
    *prompt, last = row["messages"]
    if last.get("role") != "assistant" or not isinstance(last.get("content"), str):
        raise DataError(
            "a conversation does not end with a text of the assistant, so it has no answer to compare with."
        )
    return prompt, last["content"]


def _key(messages: list[dict[str, Any]]) -> str:
    return json.dumps([[turn.get("role"), turn.get("content")] for turn in messages], ensure_ascii=False)


def _items(held_out: list[dict[str, Any]], recorded: dict[str, str], notes: list[str]) -> Iterator[dict[str, Any]]:
    """Yield an item for each held-out row, with the old model's answer if all of them have one."""
    pairs = [_prompt_and_reference(row) for row in held_out]
    if not recorded:
        if pairs:
            notes.append("no answers of the old model: the suite compares with the reference only")
        yield from ({"messages": prompt, "reference": reference} for prompt, reference in pairs)
        return
    with_output = [(prompt, reference) for prompt, reference in pairs if _key(prompt) in recorded]
    if len(with_output) < len(pairs):
        num_missing = len(pairs) - len(with_output)
        notes.append(f"{num_missing:,} of {len(pairs):,} validation rows have no recorded answer, and are no items")
    for prompt, reference in with_output:
        yield {"messages": prompt, "reference": reference, "old_answer": recorded[_key(prompt)]}
    num_equal = sum(recorded[_key(prompt)].strip() == reference.strip() for prompt, reference in with_output)
    notes.append(f"{num_equal:,} of {len(with_output):,} recorded answers equal their reference")


def _write_suite(out: Path, items: list[dict[str, Any]]) -> None:
    longest = max(len(text.encode()) for item in items for text in (item["reference"], item.get("old_answer", "")))
    has_old = "old_answer" in items[0]
    graders = {"against-old" if has_old else "closeness": _SIMILAR, "equal": _SAME}
    benchmarks = [
        {
            "type": "generation",
            "name": name,
            "items": "items.jsonl",
            "grader": _against_old(grader) if has_old and grader is _SIMILAR else {**grader, "input": _OUTPUT},
            # An answer has at most as many tokens as bytes; more room might not fit the model's context.
            "sampling": {"max_tokens": max(16, longest)},
        }
        for name, grader in graders.items()
    ]
    tree = {"name": "replacement", "benchmarks": benchmarks}
    validated(Suite, LoadedConfig(tree, {}))
    (out / "items.jsonl").write_text(_lines(items), encoding="utf-8")
    (out / "suite.yaml").write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")


def _against_old(grader: dict[str, Any]) -> dict[str, Any]:
    """Return a grader of the difference, on a scale from 0 to 1.

    Ties are 0.5: differences of which none is negative would be taken for shares, whose intervals begin at 0.
    """
    graders = {"new": {**grader, "input": _OUTPUT}, "old": {**grader, "input": "{{ item.old_answer }}"}}
    return {"type": "multi", "graders": graders, "calculate_output": "0.5 + (new - old) / 2"}
