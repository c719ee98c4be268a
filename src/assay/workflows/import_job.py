"""Turns a hosted fine-tuning job of OpenAI into a dataset, a recipe for a model folder, and a suite.

    job.json, training and validation JSONL --> rows.jsonl, dataset/ --> recipe.yaml
    validation rows, recorded answers       --> items.jsonl, suite.yaml: new model against old answers, item by item

The job is read as a request to `assay serve`: a first recipe for the dataset is its base model. Answers of supervised
jobs are graded by their similarity to the reference, those of reinforcement jobs by the job's grader. The score of
`against-old` is 0.5 plus half of the difference: the grade of the new model's answer minus that of the recorded one.
So `assay eval run` prints its mean with an interval: 0.5 is as good as the old model.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import yaml

from assay.base.errors import ConfigError, DataError
from assay.data.dataset.build import build_dataset
from assay.data.dataset.fields import BuildConfig
from assay.data.dataset.tokens import TOKENIZER_FILE
from assay.evals.imported import ImportedSuite
from assay.evals.openai_eval import OUTPUT_ITEM, objects_in
from assay.scoring.json_lines import json_lines, json_lines_text, json_value
from assay.serving.api_error import ApiError
from assay.serving.base_models import (
    BaseModelConfig,
    BaseModelFile,
    TrainableConfig,
    concrete_hyperparameters,
    job_recipe,
)
from assay.serving.methods import DEFAULT_METHOD, SERVED_METHODS, ServedMethod
from assay.serving.openai.bodies import JobBody, MethodBody
from assay.serving.openai.method_body import RequestedMethod, requested_method
from assay.workflows.new_recipe import LANES, LanguageMethod, new_recipe
from assay.workflows.run import check_recipe

RECIPE_FILE = "recipe.yaml"
"""Written last, so that a folder that has one is whole."""
HELD_OUT = "held_out"
_ON_TEXT = ("string_check", "text_similarity", "label_model")
"""Graders with scores from 0 to 1 that see of an answer only what their templates name."""
_TEXT = re.compile(r"sample\.output_text")
_OUTPUT = "{{ sample.output_text }}"
_SIMILAR = {
    "type": "text_similarity", "evaluation_metric": "fuzzy_match", "input": _OUTPUT, "reference": "{{ item.reference }}"
}  # fmt: skip
_SAME = {"type": "string_check", "operation": "eq", "input": _OUTPUT, "reference": "{{ item.reference }}"}


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
    notes = [f"the job's base model was {job.get('model')}; the new one starts from {model}"]
    requested = _requested(job_file, job, notes)
    method = requested.method
    held_out = [] if validation is None else list(_rows(validation))
    rows = [_row(row, method, is_held_out=False) for row in _rows(training)]
    rows += [_row(row, method, is_held_out=True) for row in held_out]
    items = [] if method.format == "pairs" else list(_items(held_out, _recorded(old_outputs), method, notes))
    if not items:
        notes.append("no suite: it needs a validation file of a supervised or reinforcement job")
    if (out / RECIPE_FILE).exists():
        raise ConfigError(f"{out / RECIPE_FILE}: exists already. Name another folder.")
    out.mkdir(parents=True, exist_ok=True)
    rows_file = out / "rows.jsonl"
    rows_file.write_text(json_lines_text(rows), encoding="utf-8")
    config = BuildConfig(
        tokenizer=str(model / TOKENIZER_FILE),
        format=method.format,
        chat_template=chat_template,
        label_field=None,
        metadata_fields=(HELD_OUT,),
        key_is_text=True,
    )
    manifest = build_dataset([rows_file], out / "dataset", config, name=str(job.get("id", "job")))
    recipe = _recipe(out / "dataset", model, job, requested, has_validation=bool(held_out))
    if items:
        for name, text in _suite(job_file, items, requested.grader, notes).files().items():
            (out / name).write_text(text, encoding="utf-8")
    (out / RECIPE_FILE).write_text(recipe, encoding="utf-8")
    return ImportedJob(manifest.num_rows, len(items), notes)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    return iter(json_lines(path.read_bytes(), path, of_what="rows").values())


def _row(row: dict[str, Any], method: ServedMethod, *, is_held_out: bool) -> dict[str, Any]:
    """Return a row of the dataset; graders get the job's row as `item`."""
    return {**({"item": row} if method.format == "prompts" else {}), **row, HELD_OUT: is_held_out}


def _requested(job_file: Path, job: Mapping[str, Any], notes: list[str]) -> RequestedMethod:
    """Return the job's method as `assay serve` reads it; raises `ConfigError` for what it would refuse."""
    method_tree = _keys_with_values(job.get("method"), job_file)
    kind = str(method_tree.get("type") or DEFAULT_METHOD)
    method = SERVED_METHODS.get(kind)
    if method is None or not method.writes:
        known = ", ".join(name for name, served in SERVED_METHODS.items() if served.writes)
        raise ConfigError(f"{job_file}: jobs of method '{kind}' are not imported, only those of {known}.")
    inside = _keys_with_values(method_tree.get(kind), job_file)
    hyperparameters = _keys_with_values(inside.get("hyperparameters") or job.get("hyperparameters"), job_file)
    unused = {name: hyperparameters.pop(name, "auto") for name in method.left_to_us}
    notes += [f"{name} {value} has no counterpart here" for name, value in unused.items() if value != "auto"]
    batch = hyperparameters.get("batch_size")
    if isinstance(batch, int) and batch % LANES:
        hyperparameters["batch_size"] = -(-batch // LANES) * LANES
        notes.append(f"batch_size {batch} became {hyperparameters['batch_size']}, a multiple of {LANES} lanes")
    if "learning_rate_multiplier" in hyperparameters:
        notes.append("learning_rate_multiplier multiplies our rule of thumb for the learning rate")
    without_recipe = TrainableConfig(recipe={"method": {"type": method.recipe_type}})
    base = BaseModelConfig(tokenizer="", methods={kind: without_recipe})
    tree = {"type": kind, kind: {**inside, "hyperparameters": hyperparameters}}
    body = JobBody(model="", training_file="", method=MethodBody.model_validate(tree))
    try:
        return requested_method(BaseModelFile("", base, 0.0), body)
    except ApiError as error:
        raise ConfigError(f"{job_file}: {error}") from error


def _recipe(
    dataset: Path, model: Path, job: Mapping[str, Any], requested: RequestedMethod, *, has_validation: bool
) -> str:
    """Return a first recipe for the dataset with the job's numbers and grader; `auto` keeps what that has."""
    epochs = requested.hyperparameters.get("n_epochs")
    first = new_recipe(
        dataset,
        name=str(job.get("user_provided_suffix") or job.get("id") or "job"),
        model=str(model),
        epochs=int(epochs) if isinstance(epochs, int | float) else None,
        method=cast(LanguageMethod, requested.method.recipe_type),
        grader=requested.grader,
    )
    tree = yaml.safe_load(first.text)
    name, data = tree.pop("name"), tree.pop("data")
    trainable = TrainableConfig(recipe=tree)
    loaded = job_recipe(
        trainable,
        requested.method,
        concrete_hyperparameters(trainable, requested.method, requested.hyperparameters),
        name=name,
        dataset=str(dataset),
        split={"type": "column", "column": HELD_OUT, "validation": ["true"]} if has_validation else data["split"],
        seed=job["seed"] if isinstance(job.get("seed"), int) else 0,
        grader=requested.grader,
    )
    check_recipe(loaded)
    head = f"# Made of fine-tuning job {job.get('id')} by 'assay train import'.\n"
    tree = {"name": name, "seed": loaded.values["seed"], **loaded.values}
    return head + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)


def _keys_with_values(tree: Any, job_file: Path) -> dict[str, Any]:
    """Return the keys that have a value: jobs are retrieved with all of them."""
    if not isinstance(tree, Mapping | None):
        raise ConfigError(f"{job_file}: its method is not laid out as fine_tuning.jobs.retrieve returns it.")
    return {key: value for key, value in (tree or {}).items() if value is not None}


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


def _messages(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = row.get("messages")
    if not isinstance(found, list) or not found or not all(isinstance(turn, dict) for turn in found):
        raise DataError("a row of the validation file or of the answers has no list of 'messages'.")
    return found


def _prompt_and_reference(row: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str]:
    *prompt, last = _messages(row)
    if last.get("role") != "assistant" or not isinstance(last.get("content"), str):
        raise DataError(
            "a conversation does not end with a text of the assistant, so it has no answer to compare with."
        )
    return prompt, last["content"]


def _key(messages: list[dict[str, Any]]) -> str:
    return json.dumps([[turn.get("role"), turn.get("content")] for turn in messages], ensure_ascii=False)


def _items(
    held_out: list[dict[str, Any]], recorded: dict[str, str], method: ServedMethod, notes: list[str]
) -> Iterator[dict[str, Any]]:
    """Yield an item for each held-out row, with the old model's answer if all of them have one."""
    if method.format == "prompts":
        items = [{**(row.get("item") or row), "messages": _messages(row)} for row in held_out]
    else:
        pairs = map(_prompt_and_reference, held_out)
        items = [{"messages": prompt, "reference": reference} for prompt, reference in pairs]
    if not recorded:
        if items:
            notes.append("no answers of the old model: the suite grades those of the new one only")
        yield from items
        return
    compared = [{**item, "old_answer": recorded[key]} for item in items if (key := _key(item["messages"])) in recorded]
    if len(compared) < len(items):
        num_missing = len(items) - len(compared)
        notes.append(f"{num_missing:,} of {len(items):,} validation rows have no recorded answer, and are no items")
    if method.format == "chat":
        num_equal = sum(item["old_answer"].strip() == item["reference"].strip() for item in compared)
        notes.append(f"{num_equal:,} of {len(compared):,} recorded answers equal their reference")
    yield from compared


def _suite(
    job_file: Path, items: list[dict[str, Any]], grader: Mapping[str, Any] | None, notes: list[str]
) -> ImportedSuite:
    """Return a suite that grades the new model's answers, if possible against the recorded ones."""
    graders = {"closeness": _SIMILAR, "equal": _SAME} if grader is None else {"reward": dict(grader)}
    first = next(iter(graders))
    if "old_answer" in items[0]:
        if against_old := _against_old(graders[first]):
            graders = {"against-old": against_old} | {name: graders[name] for name in graders if name != "closeness"}
        else:
            notes.append(f"recorded answers are not compared: the job's grader is of type {graders[first]['type']}")
    # An answer has at most as many tokens as bytes; more room might not fit the model's context.
    texts = [str(item[key]) for item in items for key in ("reference", "old_answer") if key in item]
    sampling = {"max_tokens": max(16, *(len(text.encode()) for text in texts))} if texts else {}
    return ImportedSuite.of("replacement", graders.items(), items, notes, sampling=sampling, source=job_file)


def _against_old(grader: dict[str, Any]) -> dict[str, Any] | None:
    """Return a grader of the difference, on a scale from 0 to 1; None if `grader` cannot read recorded answers.

    Ties are 0.5: differences of which none is negative would be taken for shares, whose intervals begin at 0.
    """
    text = json.dumps(grader)
    if grader["type"] not in _ON_TEXT or not _TEXT.search(text) or "sample.output_json" in text:
        return None
    graders = {"new": grader, "old": json.loads(_TEXT.sub("item.old_answer", text))}
    return {"type": "multi", "graders": graders, "calculate_output": "0.5 + (new - old) / 2"}
