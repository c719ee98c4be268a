"""The model card of an exported model, from its records only."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import yaml

from assay.base.clock import utc_text
from assay.base.units import count_text, number_of
from assay.records.audit import AuditReport
from assay.records.commit import Commit
from assay.records.dataset import DatasetManifest
from assay.records.evaluation import AnyEvaluation
from assay.records.exported_model import ExportedModel
from assay.records.run import Attempt, Run
from assay.reporting.document import Table
from assay.reporting.documents.markdown import code, fenced, markdown_table, plain, quoted
from assay.reporting.values import device_hours_text, estimate_text


class ModelFacts(NamedTuple):
    """The records behind a model card."""

    run: Run
    commit: Commit
    exported: ExportedModel
    manifest: DatasetManifest
    attempts: tuple[Attempt, ...]
    evaluation: AnyEvaluation | None
    """The evaluation of this commit's weights, on the run's validation rows."""
    audit: AuditReport | None
    """The run's latest audit."""


def model_card(facts: ModelFacts) -> str:
    """Return the card as Markdown, with the YAML header that model hubs read."""
    exported = facts.exported
    head = {
        "library_name": "peft" if exported.base_sha256 else "transformers",
        "pipeline_tag": "text-generation" if exported.form == "language_model" else "text-classification",
        "tags": ["assay"],
    }
    return f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n\n" + "\n".join(_lines(facts)) + "\n"


def _lines(facts: ModelFacts) -> Iterator[str]:
    exported = facts.exported
    yield f"# {plain(exported.recipe['name'])}, run {plain(exported.run_id)}, step {exported.step:,}"
    yield from _warned(exported)
    yield from ("", *_use(exported))
    yield from ("", "## Data", "", *_data(facts))
    yield from ("", "## Training", "", *_training(facts))
    yield from ("", "## Evaluation", "", *_evaluation(facts))
    yield from ("", "## Audit", "", *_audit(facts))
    yield from ("", "## Digests", "", *markdown_table(_digests(facts)))
    yield from ("", "## Not on record", "")
    yield ("The licence, the intended use, possible harms, and the quality on rows unlike those it was evaluated on.")
    recipe = yaml.safe_dump(exported.recipe, sort_keys=False).rstrip()
    yield from ("", "## Recipe", "", *fenced(recipe, "yaml"))


def _warned(exported: ExportedModel) -> Iterator[str]:
    """Yield the warnings first: a passed audit says nothing about the model."""
    for rule, text in zip(exported.warning_rules, exported.warnings, strict=True):
        yield from ("", f"**Warning, {plain(rule)}:** {plain(text)}")


def _use(exported: ExportedModel) -> Iterator[str]:
    if exported.form == "classifier":
        yield from _use_of_classifier(exported)
    else:
        yield from _use_of_language_model(exported)


def _use_of_language_model(exported: ExportedModel) -> Iterator[str]:
    is_reward = exported.form == "reward_model"
    kind = "AutoModelForSequenceClassification" if is_reward else "AutoModelForCausalLM"
    yield from ("```python", f"from transformers import {kind}, AutoTokenizer")
    if exported.base_sha256 is not None:
        labels = ", num_labels=1" if is_reward else ""
        yield from (
            "from peft import PeftModel",
            "",
            "tokenizer = AutoTokenizer.from_pretrained(FOLDER)",
            f"base = {kind}.from_pretrained(BASE{labels})",
            "model = PeftModel.from_pretrained(base, FOLDER)",
        )
    else:
        yield from (
            "",
            "tokenizer = AutoTokenizer.from_pretrained(FOLDER)",
            f"model = {kind}.from_pretrained(FOLDER)",
        )
    files = {file.path for file in exported.files}
    if "chat_template.jinja" in files:
        tokenize_call = 'tokenizer.apply_chat_template(messages, return_dict=True, return_tensors="pt")'
    else:
        tokenize_call = 'tokenizer(text, return_tensors="pt")'
    yield from (f"tokens = {tokenize_call}", "logits = model(**tokens).logits", "```", "")
    if exported.base_sha256 is not None:
        yield (
            "The folder holds adapters alone. `BASE` is the model that they were trained on, which the recipe "
            f"names; the digest of its weights in the run's commits is {code(exported.base_sha256)}."
        )
    if is_reward:
        yield (
            "The one logit is the reward of a prompt with its answer, read at the last token: only differences "
            "between answers to one prompt mean something. transformers takes the last token that is not the "
            "padding token, so pad with the tokenizer's; where it has none, ask one sequence at a time."
        )
    yield f"The longest row that was trained on has {number_of(exported.max_tokens, 'token')}."


def _use_of_classifier(exported: ExportedModel) -> Iterator[str]:
    yield from (
        "```python",
        "from transformers import AutoModelForSequenceClassification, AutoTokenizer",
        "",
        "tokenizer = AutoTokenizer.from_pretrained(FOLDER, trust_remote_code=True)",
        "model = AutoModelForSequenceClassification.from_pretrained(FOLDER, trust_remote_code=True).eval()",
        'tokens = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")',
    )
    columns = [name for name in exported.columns if name != "label"]
    buckets = ", metadata_buckets=model.buckets_of(rows)" if columns else ""
    label = exported.recipe["method"].get("label") or {"type": "binary"}
    yield from (f"logits = model(**tokens{buckets}).logits", _OUTPUT_CODE[label["type"]], "```", "")
    if columns:
        named = ", ".join(map(code, columns))
        yield f"`rows` are mappings with {named}, None where it is not known; without them all is missing."
    yield (
        "transformers has no class of this shape, so the folder brings a module, which needs torch and "
        "transformers only: read `modeling_assay.py` before you trust it. `assay eval predict FOLDER FILE` runs "
        f"none of it. Texts of more than {exported.max_tokens:,} tokens are cut, as none longer was trained on."
    )


_OUTPUT_CODE = {
    "binary": "probabilities = logits[:, 0].sigmoid()  # of label 1",
    "classes": "probabilities = logits.softmax(dim=-1)  # in the order of model.config.id2label",
    "number": "numbers = logits[:, 0] * model.config.label_scale + model.config.label_mean",
}
"""Label type to the code that interprets a classifier's logits."""


def _data(facts: ModelFacts) -> Iterator[str]:
    manifest = facts.manifest
    longest = "longer sequence" if manifest.format == "pairs" else "sequence"
    labels = ", ".join(f"{plain(name)}: {count:,}" for name, count in manifest.label_counts.items())
    yield (
        f"Dataset {code(manifest.name)}: {number_of(manifest.num_rows, 'row')}, "
        f"{count_text(manifest.num_tokens)} tokens, "
        f"{manifest.lengths.mean:.0f} in a row's {longest} on average and {manifest.lengths.max:,} at most."
        + (f" Rows by label: {labels}." if labels else "")
    )
    split = facts.exported.recipe["data"]["split"]
    yield plain(f"Held out: {', '.join(f'{key} {value}' for key, value in _chosen(split))}.")
    if not facts.exported.is_tokenizer_proved:
        yield "The tokenizer was named at the export; no record says that the rows were made with it."


def _chosen(split: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """How rows are held out, as a recipe writes it; the kind first, and without what was not asked for."""
    for key in sorted(split, key=lambda key: key != "type"):
        if split[key] not in (None, False):
            yield key, "yes" if split[key] is True else str(split[key])


def _training(facts: ModelFacts) -> Iterator[str]:
    run, attempts = facts.run, facts.attempts
    world_sizes = sorted({attempt.world_size for attempt in attempts})
    devices = sorted({attempt.processor.model for attempt in attempts})
    held_s = sum(attempt.world_size * (attempt.ended_s - attempt.started_s) for attempt in attempts if attempt.ended_s)
    yield (
        f"Begun {utc_text(run.created_s)} by assay {plain(run.code_version)}; "
        f"step {facts.commit.step:,} of {run.num_steps:,}, in {number_of(len(attempts), 'attempt')} on "
        f"{' and '.join(map(str, world_sizes))} {'rank' if world_sizes == [1] else 'ranks'}"
        + (f" ({plain(', '.join(devices))})" if devices else "")
        + f", {device_hours_text(held_s)} of device time in all."
    )
    if run.parent is not None:
        origin = "these very weights are its" if facts.commit.is_inherited else "the steps up to there were its"
        yield f"A fork of {code(str(run.parent))}: {origin}, and so are their device time and their audit."


def _evaluation(facts: ModelFacts) -> Iterator[str]:
    evaluation = facts.evaluation
    if evaluation is None:
        yield "These weights were not evaluated: the run evaluated other commits, or has not finished."
        return
    rows = evaluation.overall.num_rows
    yield f"On the {rows:,} held-out rows of {code(evaluation.split)}:"
    yield ""
    table = Table.of(
        evaluation.overall.measured,
        ("metric", lambda measured: measured.metric.title),
        ("value", lambda measured: estimate_text(measured.estimate)),
        ("better", lambda measured: "higher" if measured.metric.higher_is_better else "lower"),
    )
    yield from markdown_table(quoted(table))


def _audit(facts: ModelFacts) -> Iterator[str]:
    audit = facts.audit
    whole = (
        f"what was learned behind {plain(audit.forked_from)}" if audit and audit.forked_from else "the run as a whole"
    )
    if audit is None:
        command = code(f"assay runs audit {facts.run.run_id}")
        yield f"No audit on record: it is not proved that each row was used once ({command})."
        return
    yield (
        f"**{audit.verdict}** of {whole}: {audit.rows_trained:,} of {audit.rows_expected:,} rows "
        f"learned once, {audit.rows_quarantined:,} quarantined, in {number_of(audit.epochs, 'epoch')}."
    )
    for line in (*audit.problems, *audit.missing[:10], *audit.repeated[:10]):
        yield f"- {plain(line)}"


def _digests(facts: ModelFacts) -> Table:
    exported = facts.exported
    rows = {
        "weights, in the run's log of commits": plain(exported.weights_digest),
        "recipe and dataset": plain(exported.recipe_sha256),
        "dataset": plain(exported.dataset_fingerprint),
        "tokenizer": plain(exported.tokenizer_sha256),
        **{code(file.path): plain(file.sha256) for file in exported.files},
    }
    return Table(("of", "sha256"), [list(row) for row in rows.items()])
