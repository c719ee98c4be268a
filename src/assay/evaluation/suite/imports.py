"""Results that other tools made, as our records: lm-evaluation-harness, inspect-ai, OpenAI Evals.

    samples_TASK_DATE.jsonl + results_DATE.json     lm_eval --log_samples --output_path
    LOG.eval, LOG.json                              inspect eval
    RUN.jsonl                                       oaieval --record_path

Per-item scores are read, not summaries: intervals, pairing and power are ours. Where a tool gives its own
mean, ours must be the same number, or the import is refused: then the scores are not what they seem.
"""

import json
import math
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from assay.base.digest import sha256_of_json
from assay.base.errors import ConfigError, DataError
from assay.base.kind_text import kind_text
from assay.evaluation.evidence.benchmark_items import ItemScore, items_table, summarise
from assay.evaluation.suite.scorer import Identity
from assay.scoring.item_failure import ItemFailure
from assay.scoring.json_lines import json_lines

_MEAN_TOLERANCE = 1e-6
_HARNESS_UNITS = {"bits_per_byte": "bits per byte"}
_SAMPLES_NAME = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d{2}-\d{2}T.+)\.jsonl")


class Imported(NamedTuple):
    """One benchmark of another tool."""

    identity: Identity
    items: list[ItemScore]
    model: str
    """As the tool names it."""
    source: str


def read_foreign(path: Path, *, metric: str | None = None) -> list[Imported]:
    """The benchmarks in a file of another tool; `metric` chooses one of several scores of an item.

    Raises `ConfigError` for a file that is none of them, `DataError` for one that does not hold together.
    """
    try:
        return _read(path, metric)
    except (AttributeError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        # The layout is other people's, and any part of it may be missing or of another type.
        raise DataError(
            f"{path}: neither whole nor laid out as lm-eval, inspect or oaieval write it "
            f"({type(error).__name__}: {error}). Make the log again, and import it unchanged."
        ) from error


def _read(path: Path, metric: str | None) -> list[Imported]:
    if not path.is_file():
        raise ConfigError(
            f"{path}: no such file. Name samples_*.jsonl of lm-eval, an .eval or .json log of inspect."
        )
    if zipfile.is_zipfile(path):
        return [_from_inspect_archive(path, metric)]
    if _SAMPLES_NAME.fullmatch(path.name):
        return _from_harness(path, metric)
    lines = path.read_text(encoding="utf-8")
    try:
        tree = json.loads(lines)
    except ValueError:
        return [_from_openai_evals(path, _json_lines(path))]
    if isinstance(tree, dict) and "eval" in tree:
        return [_from_inspect(path, tree, tree.get("samples") or [], metric)]
    raise ConfigError(
        f"{path}: neither samples of lm-eval, nor a log of inspect or of oaieval. Of lm-eval, name the file "
        "samples_*.jsonl (run it with --log_samples)."
    )


def _from_harness(path: Path, metric: str | None) -> list[Imported]:
    samples = _json_lines(path)
    match = _SAMPLES_NAME.fullmatch(path.name)
    assert match is not None, "the caller has looked at the name"
    task = match["task"]
    summary_path = path.with_name(f"results_{match['date']}.json")
    summary = json.loads(summary_path.read_text(encoding="utf-8")) if summary_path.is_file() else {}
    version = (summary.get("versions") or {}).get(task)
    filters = sorted({str(sample.get("filter", "none")) for sample in samples})
    found = []
    for name in filters:
        mine = [sample for sample in samples if str(sample.get("filter", "none")) == name]
        chosen = metric or _first_scalar(mine[0], path)
        items = [_harness_item(sample, chosen, path) for sample in mine]
        _require_same_mean(items, _harness_mean(summary, task, chosen, name), f"{path}: {task}, {chosen}")
        better = (summary.get("higher_is_better") or {}).get(task, {}).get(chosen, True)
        suffix = "" if len(filters) == 1 else f".{name}"
        identity = Identity(
            benchmark=_plain(task + suffix),
            benchmark_sha256=_digest_of(mine, "doc_hash", "target_hash"),
            grader_sha256=sha256_of_json(["lm-evaluation-harness", task, chosen, name, version]),
            prompt_sha256=_digest_of(mine, "prompt_hash"),
            unit="share" if chosen.startswith("acc") else _HARNESS_UNITS.get(chosen, chosen),
            higher_is_better=better is not False,
        )
        found.append(Imported(identity, items, str(summary.get("model_name", "")), "lm-evaluation-harness"))
    return found


def _harness_item(sample: Mapping[str, Any], metric: str, path: Path) -> ItemScore:
    if metric not in sample:
        raise ConfigError(f"{path}: items have no '{metric}', but {', '.join(sample.get('metrics', []))}.")
    item_id, value = f"{sample['doc_id']:08d}", sample[metric]
    answer = _short(sample.get("filtered_resps"))
    if metric == "bits_per_byte" and isinstance(value, list | tuple):
        log_likelihood, num_bytes = value
        return ItemScore(item_id, item_id, -log_likelihood / num_bytes / math.log(2), weight=float(num_bytes))
    if not isinstance(value, int | float):
        raise ConfigError(
            f"{path}: '{metric}' of an item is no number ({value!r:.60}); choose another --metric."
        )
    return ItemScore(item_id, item_id, float(value), answer=answer)


def _harness_mean(summary: Mapping[str, Any], task: str, metric: str, filter_name: str) -> float | None:
    found = (summary.get("results") or {}).get(task, {}).get(f"{metric},{filter_name}")
    return float(found) if isinstance(found, int | float) else None


def _first_scalar(sample: Mapping[str, Any], path: Path) -> str:
    names = [str(name) for name in sample.get("metrics", [])]
    for name in names:
        if isinstance(sample.get(name), int | float) or name == "bits_per_byte":
            return name
    raise ConfigError(f"{path}: none of the metrics {', '.join(names) or '(none)'} is a number per item.")


def _from_inspect_archive(path: Path, scorer: str | None) -> Imported:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if "header.json" not in names:
            raise DataError(f"{path}: a zip without header.json: no finished log of inspect-ai.")
        header = json.loads(archive.read("header.json"))
        samples = [
            json.loads(archive.read(name))
            for name in names
            if name.startswith("samples/") and name.endswith(".json")
        ]
    return _from_inspect(path, header, samples, scorer)


def _from_inspect(
    path: Path, header: Mapping[str, Any], samples: Sequence[Mapping[str, Any]], scorer: str | None
) -> Imported:
    if not samples:
        raise DataError(f"{path}: the log holds no samples. Run inspect without --no-log-samples.")
    spec = header["eval"]
    names = list(dict.fromkeys(name for sample in samples for name in sample.get("scores") or {}))
    chosen = scorer or (names[0] if names else None)
    if chosen is None or chosen not in names:
        raise ConfigError(f"{path}: samples have no score '{chosen}', but {', '.join(names) or 'none at all'}.")
    has_epochs = any(int(sample.get("epoch", 1)) > 1 for sample in samples)
    items = [_inspect_item(sample, chosen, has_epochs=has_epochs, path=path) for sample in samples]
    asked = sorted([str(sample["id"]), sample.get("input"), sample.get("target")] for sample in samples)
    identity = Identity(
        benchmark=_plain(str(spec["task"]).rpartition("/")[2]),
        benchmark_sha256=sha256_of_json(asked),
        grader_sha256=sha256_of_json(["inspect-ai", spec["task"], spec.get("task_version"), chosen]),
        prompt_sha256=sha256_of_json(
            [spec.get("solver"), spec.get("task_args"), spec.get("model_generate_config")]
        ),
    )
    return Imported(identity, items, str(spec.get("model", "")), "inspect-ai")


def _inspect_item(sample: Mapping[str, Any], scorer: str, *, has_epochs: bool, path: Path) -> ItemScore:
    cluster = str(sample["id"])
    item_id = f"{cluster}/{sample.get('epoch', 1)}" if has_epochs else cluster
    if sample.get("error"):
        text = _short(sample["error"].get("message")) or "without a message"
        return ItemScore(item_id, cluster, None, failure=ItemFailure("sample_error", text))
    score = (sample.get("scores") or {}).get(scorer)
    if score is None:
        return ItemScore(item_id, cluster, None, failure=ItemFailure("unscored", f"no score '{scorer}'"))
    value = _inspect_value(score["value"], path)
    if not math.isfinite(value):
        text = str(score.get("reason") or "the value is no number")
        return ItemScore(item_id, cluster, None, failure=ItemFailure("unscored", text))
    return ItemScore(item_id, cluster, value, answer=_short(score.get("answer")))


_INSPECT_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
_INSPECT_ANSWERS = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}


def _inspect_value(value: Any, path: Path) -> float:
    """As inspect's `value_to_float`: C, P, I, N are 1, 0.5, 0, 0; yes, true, no, false; numbers; else 0."""
    if isinstance(value, list | dict):
        raise ConfigError(f"{path}: a score is {kind_text(value)}, not one number. Import another --metric.")
    if isinstance(value, str):
        if (known := _INSPECT_GRADES.get(value, _INSPECT_ANSWERS.get(value.lower()))) is not None:
            return known
        try:
            number = float(value)
        except ValueError:
            return 0.0
        return number if math.isfinite(number) else 0.0
    return float("nan") if value is None else float(value)


def _from_openai_evals(path: Path, lines: Sequence[Mapping[str, Any]]) -> Imported:
    spec = next((line["spec"] for line in lines if "spec" in line), None)
    if spec is None:
        raise ConfigError(f"{path}: no line with a 'spec': not a log of oaieval, nor samples of lm-eval.")
    items: dict[str, ItemScore] = {}
    for line in lines:
        data, sample_id = line.get("data") or {}, line.get("sample_id")
        if sample_id is None or line.get("type") not in ("match", "metrics"):
            continue
        value = data.get("correct", data.get("score", data.get("accuracy")))
        if isinstance(value, int | float) and sample_id not in items:
            details = json.dumps({"choice": data["choice"]}) if isinstance(data.get("choice"), str) else None
            items[sample_id] = ItemScore(
                sample_id, sample_id, float(value), answer=_short(data.get("sampled")), details=details
            )
    if not items:
        raise DataError(f"{path}: no match or metrics event with a score. Was the run cut short?")
    report: Any = next((line["final_report"] for line in lines if "final_report" in line), {})
    mean = report.get("accuracy", report.get("score")) if isinstance(report, Mapping) else None
    _require_same_mean(list(items.values()), mean, str(path))
    name = str(spec.get("eval_name") or spec.get("base_eval") or path.stem)
    identity = Identity(
        benchmark=_plain(name),
        benchmark_sha256=sha256_of_json(["openai-evals", name, sorted(items)]),
        grader_sha256=sha256_of_json(["openai-evals", (spec.get("run_config") or {}).get("eval_spec")]),
        prompt_sha256=sha256_of_json(["openai-evals", name]),
    )
    model = ", ".join(spec.get("completion_fns") or [])
    return Imported(identity, list(items.values()), model, "openai-evals")


def _json_lines(path: Path) -> list[dict[str, Any]]:
    return list(json_lines(path.read_text(encoding="utf-8"), path, of_what="lines").values())


def _require_same_mean(items: Sequence[ItemScore], theirs: float | None, where: str) -> None:
    ours = summarise(items_table(items)).score.value
    if theirs is not None and abs(ours - theirs) > _MEAN_TOLERANCE:
        raise DataError(
            f"{where}: the mean of the items is {ours:.6f}, the tool's own result {theirs:.6f}. It "
            "summarises otherwise than by a mean (or the file is not whole); choose another --metric."
        )


def _digest_of(samples: Sequence[Mapping[str, Any]], *keys: str) -> str:
    return sha256_of_json(sorted([str(sample.get(key)) for key in ("doc_id", *keys)] for sample in samples))


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).lstrip("._-") or "imported"


def _short(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)[:2000]
