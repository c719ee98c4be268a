"""Import results of other tools as our records: lm-evaluation-harness, inspect-ai, OpenAI Evals, Promptfoo.

    samples_TASK_DATE.jsonl + results_DATE.json     lm_eval --log_samples --output_path
    LOG.eval, LOG.json                              inspect eval
    RUN.jsonl                                       oaieval --record_path
    *.json, *.jsonl                                 objects of OpenAI's hosted evals, in one or several files
    RESULTS.json                                    promptfoo export, and what OpenAI's dashboard exports for it

Only per-item scores are imported; intervals, pairing and power are computed here. If lm-eval or oaieval report a mean,
the mean of the items must equal it, or the import is rejected, because the scores would mean something else.
"""

import json
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from assay.base.digest import sha256_of_json
from assay.base.errors import ConfigError, DataError
from assay.evals import inspect_log
from assay.evals.imported import MEAN_TOLERANCE, Imported, ImportedSuite, as_allowed, plain_name, short_text, unscored
from assay.evals.openai_eval import objects_in, openai_suite, read_openai_eval
from assay.evals.promptfoo import is_results, promptfoo_suite, read_promptfoo
from assay.evals.scorer import Identity
from assay.scoring.json_lines import json_lines, json_value
from assay.statistics.benchmark_items import ItemScore, items_table, summarise

_UNLIKE = (
    AttributeError, KeyError, TypeError, ValueError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error,
    struct.error, yaml.YAMLError,
)  # fmt: skip
"""Errors raised by files that are corrupt, encrypted or laid out differently."""
_HARNESS_UNITS = {"bits_per_byte": "bits per byte"}
_SAMPLES_NAME = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d{2}-\d{2}T.+)\.jsonl")


def read_files(paths: Sequence[Path], *, metric: str | None = None, is_partial_allowed: bool = False) -> list[Imported]:
    """Read the benchmarks in files of other tools; `metric` chooses one of several scores of an item. An eval of
    OpenAI's platform may be spread over several files.

    Raises `ConfigError` for an unknown format, and `DataError` if a file is inconsistent, or incomplete while
    `is_partial_allowed` is off.
    """
    found: list[Imported] = []
    hosted: dict[Path, list[Mapping[str, Any]]] = {}
    for path in paths:
        tree = _tree(path)
        with _laid_out(path):
            if objects := list(objects_in(tree)):
                hosted[path] = objects
                continue
            found += [
                as_allowed(read, path, is_partial_allowed=is_partial_allowed) for read in _read(path, tree, metric)
            ]
    if hosted:
        first = next(iter(hosted))
        with _laid_out(first):
            of_hosted = read_openai_eval(first, [part for parts in hosted.values() for part in parts])
            found += [as_allowed(read, first, is_partial_allowed=is_partial_allowed) for read in of_hosted]
    return found


def read_suite_definition(paths: Sequence[Path]) -> ImportedSuite:
    """Return the suite that files of OpenAI's platform, or one of Promptfoo, define."""
    trees, source = [_tree(path) for path in paths], paths[0]
    with _laid_out(source):
        if hosted := list(objects_in(trees)):
            return openai_suite(hosted, source=source)
        config = trees[0].get("config") if is_results(trees[0]) else trees[0]
        if isinstance(config, Mapping) and "prompts" in config:
            return promptfoo_suite(config, source=source)
    raise ConfigError(f"{source}: it defines no suite. Name objects of OpenAI's hosted evals, or a file of Promptfoo.")


def _tree(path: Path) -> Any:
    """Return the JSON or YAML of a file; of JSON lines a list, of an `.eval` archive the JSON log with its content."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file. Name samples_*.jsonl of lm-eval, an .eval or .json log of inspect.")
    with _laid_out(path):
        if zipfile.is_zipfile(path):
            return inspect_log.unpacked(path)
        if path.suffix == ".eval":
            raise DataError(f"{path}: no whole archive. It was truncated or is corrupt: copy it again.")
        data = path.read_bytes()
        if path.suffix in (".yaml", ".yml"):
            return yaml.safe_load(data)
        try:
            if not _SAMPLES_NAME.fullmatch(path.name):
                return json_value(data)
        except ValueError:
            if path.suffix == ".json":
                raise
        return list(json_lines(data, path, of_what="lines").values())


@contextmanager
def _laid_out(path: Path) -> Iterator[None]:
    """Turn errors of a layout into `DataError`: another tool defines it, so any part may be missing or differ."""
    try:
        yield
    except _UNLIKE as error:
        raise DataError(
            f"{path}: neither whole nor laid out as its tool writes it ({type(error).__name__}: {error}). Write it "
            "again, and import it unchanged."
        ) from error


def _read(path: Path, tree: Any, metric: str | None) -> list[Imported]:
    if name := _SAMPLES_NAME.fullmatch(path.name):
        return _from_harness(path, name["task"], name["date"], tree, metric)
    if isinstance(tree, list):
        return [_from_openai_evals(path, tree)]
    if is_results(tree):
        return read_promptfoo(path, tree)
    if isinstance(tree, dict) and "eval" in tree:
        return inspect_log.benchmarks(path, tree, metric)
    raise ConfigError(
        f"{path}: neither samples of lm-eval, nor a log of inspect or of oaieval. Of lm-eval, name the file "
        "samples_*.jsonl (run it with --log_samples)."
    )


def _from_harness(
    path: Path, task: str, date: str, samples: Sequence[Mapping[str, Any]], metric: str | None
) -> list[Imported]:
    summary_path = path.with_name(f"results_{date}.json")
    summary = json_value(summary_path.read_bytes()) if summary_path.is_file() else {}
    version = (summary.get("versions") or {}).get(task)
    expected, note = _harness_counts(summary, task, summary_path)
    filters = sorted({str(sample.get("filter", "none")) for sample in samples})
    found = []
    for name in filters:
        own_samples = [sample for sample in samples if str(sample.get("filter", "none")) == name]
        chosen = metric or _first_scalar(own_samples[0], path)
        items = [_harness_item(sample, chosen, path) for sample in own_samples]
        if expected in (None, len(items)):
            _require_same_mean(items, _harness_mean(summary, task, chosen, name), f"{path}: {task}, {chosen}")
        better = (summary.get("higher_is_better") or {}).get(task, {}).get(chosen, True)
        suffix = "" if len(filters) == 1 else f".{name}"
        identity = Identity(
            benchmark=plain_name(task + suffix),
            benchmark_sha256=_digest_of(own_samples, "doc_hash", "target_hash"),
            grader_sha256=sha256_of_json(["lm-evaluation-harness", task, chosen, name, version]),
            prompt_sha256=_digest_of(own_samples, "prompt_hash"),
            unit="share" if chosen.startswith("acc") else _HARNESS_UNITS.get(chosen, chosen),
            higher_is_better=better is not False,
        )
        model = str(summary.get("model_name", ""))
        found.append(Imported(identity, items, model, "lm-evaluation-harness", note, expected))
    return found


def _harness_counts(summary: Mapping[str, Any], task: str, path: Path) -> tuple[int | None, str]:
    """Return the number of items that lm-eval was to score, and a note on them."""
    counts = (summary.get("n-samples") or {}).get(task) or {}
    whole, expected = counts.get("original"), counts.get("effective")
    if expected is None:
        return (None, "" if summary else f"without {path.name} it is unknown whether all items are there")
    return expected, f"a part: {expected:,} of {whole:,} items (--limit)" if whole and expected < whole else ""


def _harness_item(sample: Mapping[str, Any], metric: str, path: Path) -> ItemScore:
    if metric not in sample:
        raise ConfigError(f"{path}: items have no '{metric}', but {', '.join(sample.get('metrics', []))}.")
    item_id, value = f"{sample['doc_id']:08d}", sample[metric]
    completion = short_text(sample.get("filtered_resps"))
    if metric == "bits_per_byte" and isinstance(value, list | tuple):
        log_likelihood, num_bytes = value
        return ItemScore(item_id, item_id, -log_likelihood / num_bytes / math.log(2), weight=float(num_bytes))
    if value is None or value != value:
        return unscored(item_id, f"{metric} is no number")
    if not isinstance(value, int | float):
        raise ConfigError(f"{path}: '{metric}' of an item is no number ({value!r:.60}); choose another --metric.")
    return ItemScore(item_id, item_id, float(value), completion=completion)


def _harness_mean(summary: Mapping[str, Any], task: str, metric: str, filter_name: str) -> float | None:
    found = (summary.get("results") or {}).get(task, {}).get(f"{metric},{filter_name}")
    return float(found) if isinstance(found, int | float) else None


def _first_scalar(sample: Mapping[str, Any], path: Path) -> str:
    names = [str(name) for name in sample.get("metrics", [])]
    for name in names:
        if isinstance(sample.get(name), int | float) or name == "bits_per_byte":
            return name
    raise ConfigError(f"{path}: none of the metrics {', '.join(names) or '(none)'} is a number per item.")


def _from_openai_evals(path: Path, lines: Sequence[Mapping[str, Any]]) -> Imported:
    specs = [line["spec"] for line in lines if "spec" in line]
    if len(specs) > 1:
        raise DataError(f"{path}: {len(specs)} runs in one file. Import the record of one run.")
    spec = specs[0] if specs else None
    if spec is None:
        raise ConfigError(f"{path}: no line with a 'spec': not a log of oaieval, nor samples of lm-eval.")
    failed: dict[str, ItemScore] = {}
    items: dict[str, ItemScore] = {}
    marks: dict[tuple[str, str], float] = {}
    for line in lines:
        data, sample_id = line.get("data") or {}, line.get("sample_id")
        if sample_id is None:
            continue
        failed.setdefault(sample_id, unscored(sample_id, "no event gives it a score"))
        if line.get("type") not in ("match", "metrics"):
            continue
        value = data.get("correct", data.get("score", data.get("accuracy")))
        if not isinstance(value, int | float) or not math.isfinite(value):
            continue
        mark = marks.setdefault((sample_id, line["type"]), float(value))
        if mark != value:
            raise DataError(
                f"{path}: sample '{sample_id}' is marked twice, {mark:g} and {value:g}. Import the record of one run."
            )
        items.setdefault(sample_id, _openai_item(sample_id, mark, data))
    if not items:
        raise DataError(f"{path}: no match or metrics event with a score. Was the run cut short?")
    report: Any = next((line["final_report"] for line in lines if "final_report" in line), None)
    cut = "" if report is not None else "it has no final_report, so the run was stopped"
    mean = report.get("accuracy", report.get("score")) if isinstance(report, Mapping) else None
    _require_same_mean(list(items.values()), mean, str(path))
    name = str(spec.get("eval_name") or spec.get("base_eval") or path.stem)
    identity = Identity(
        benchmark=plain_name(name),
        benchmark_sha256=sha256_of_json(["openai-evals", name, sorted(items)]),
        grader_sha256=sha256_of_json(["openai-evals", (spec.get("run_config") or {}).get("eval_spec")]),
        prompt_sha256=sha256_of_json(["openai-evals", name]),
    )
    model = ", ".join(spec.get("completion_fns") or [])
    return Imported(identity, list((failed | items).values()), model, "openai-evals", incomplete_reason=cut)


def _openai_item(sample_id: str, value: float, data: Mapping[str, Any]) -> ItemScore:
    details = json.dumps({"choice": data["choice"]}) if isinstance(data.get("choice"), str) else None
    return ItemScore(sample_id, sample_id, value, completion=short_text(data.get("sampled")), details=details)


def _require_same_mean(items: Sequence[ItemScore], reported: float | None, where: str) -> None:
    computed = summarise(items_table(items)).score.value
    if reported is not None and abs(computed - reported) > MEAN_TOLERANCE:
        raise DataError(
            f"{where}: the mean of the items is {computed:.6f}, the tool's own result {reported:.6f}. The tool "
            "does not report a mean, or the file is not whole; choose another --metric."
        )


def _digest_of(samples: Sequence[Mapping[str, Any]], *keys: str) -> str:
    return sha256_of_json(sorted([str(sample.get(key)) for key in ("doc_id", *keys)] for sample in samples))
