"""Import logs of inspect-ai, `.eval` archives and `.json` files.

    header.json, reductions.json, samples/*.json --> scorer [x key] [x reducer] --> a benchmark each

A score may be a dictionary, of which each key is a benchmark. Epochs of a sample are items of one cluster. If inspect
reduced epochs other than by their mean (`max`, `pass_at_2`), the reduced scores are items of another benchmark.
"""

import math
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from assay.base.digest import sha256_of_json
from assay.base.errors import ConfigError, DataError
from assay.base.value_text import kind_text
from assay.evals.imported import MEAN_TOLERANCE, Imported, plain_name, short_text, unscored
from assay.evals.scorer import Identity
from assay.inference.protocol import CUT_REASONS
from assay.scoring.json_lines import json_value
from assay.statistics.benchmark_items import ItemScore

ZSTANDARD = 93
"""Compression method number that Python's `zipfile` supports from version 3.14 only."""
_LOCAL_HEADER_BYTES = 30
_SAMPLE = re.compile(r"samples/.+_epoch_\d+(\.json|/sample\.json)", re.DOTALL)
_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
_YES_NO = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}


class _Choice(NamedTuple):
    """One of a log's scores."""

    scorer: str
    key: str | None
    """Key of a score that is a dictionary."""
    reducer: str | None
    """None: the epochs themselves."""


def unpacked(path: Path) -> dict[str, Any]:
    """Return the content of an `.eval` archive in the layout of a `.json` log."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: info for info in archive.infolist()}  # the last entry of a name counts
        if "header.json" not in members:
            raise DataError(f"{path}: a zip without header.json: no finished log of inspect-ai.")
        trees = {
            name: json_value(_content(archive, info, path))
            for name, info in members.items()
            if name in ("header.json", "reductions.json") or _SAMPLE.fullmatch(name)
        }
    header, reductions = trees.pop("header.json"), trees.pop("reductions.json", None)
    return {**header, "samples": list(trees.values()), "reductions": reductions}


def benchmarks(path: Path, log: Mapping[str, Any], metric: str | None) -> list[Imported]:
    """Return one benchmark for each key and reducer of a scorer; `metric` names a scorer, or `SCORER.KEY`."""
    samples: Sequence[Mapping[str, Any]] = log.get("samples") or []
    if not samples:
        raise DataError(f"{path}: the log holds no samples. Run inspect without --no-log-samples.")
    spec, has_epochs = log["eval"], any(int(sample.get("epoch", 1)) > 1 for sample in samples)
    num_epochs, (expected, note) = (spec.get("config") or {}).get("epochs") or 1, _counts(log)
    status = log.get("status", "success")
    cut = "" if status == "success" else f"its status is '{status}'"
    summaries = (log.get("results") or {}).get("scores") or []
    questions = sorted([str(sample["id"]), sample.get("input"), sample.get("target")] for sample in samples)
    found = []
    for choice in _choices(path, summaries, samples, metric, has_epochs=has_epochs):
        if choice.reducer is None:
            items = [_item(sample, choice, has_epochs=has_epochs, path=path) for sample in samples]
        else:
            items = _reduced_items(log.get("reductions") or [], choice, path)
        parts = [part for part in (choice.key, choice.reducer) if part is not None]
        rule = ["inspect-ai", spec["task"], spec.get("task_version"), choice.scorer, *parts]
        identity = Identity(
            benchmark=plain_name(".".join([str(spec["task"]).rpartition("/")[2], *parts])),
            benchmark_sha256=sha256_of_json(questions),
            grader_sha256=sha256_of_json(rule),
            prompt_sha256=sha256_of_json(
                [spec.get("solver"), spec.get("task_args"), spec.get("model_generate_config")]
            ),
        )
        notes = "; ".join(filter(None, [note, _difference(items, _own_mean(summaries, choice))]))
        num = expected if choice.reducer is None or expected is None else expected // num_epochs
        found.append(Imported(identity, items, str(spec.get("model", "")), "inspect-ai", notes, num, cut))
    return found


def _counts(log: Mapping[str, Any]) -> tuple[int | None, str]:
    """Return the number of items that inspect was to score, epochs included, and a note on them."""
    spec, results = log["eval"], log.get("results") or {}
    data, config = spec.get("dataset") or {}, spec.get("config") or {}
    whole, limit = data.get("samples"), config.get("limit")
    chosen = None if limit or config.get("sample_id") else whole
    if data.get("sample_ids"):
        chosen = len(data["sample_ids"])
    elif limit and whole:
        first, end = limit if isinstance(limit, list) else (0, limit)
        chosen = max(0, min(end, whole) - first)
    expected = results.get("total_samples") or (chosen and chosen * (config.get("epochs") or 1))
    is_part = chosen and whole and chosen < whole
    return expected, f"a part: {chosen:,} of {whole:,} samples (--limit or --sample-id)" if is_part else ""


def _choices(
    path: Path,
    summaries: Sequence[Mapping[str, Any]],
    samples: Sequence[Mapping[str, Any]],
    metric: str | None,
    *,
    has_epochs: bool,
) -> list[_Choice]:
    scores = [sample.get("scores") or {} for sample in samples]
    keys: dict[str, dict[str, None]] = {name: {} for scores_of_sample in scores for name in scores_of_sample}
    for scores_of_sample in scores:
        for name, score in scores_of_sample.items():
            if isinstance(score["value"], dict):
                keys[name].update(dict.fromkeys(map(str, score["value"])))
    named = {
        f"{name}.{key}" if key is not None else name: (name, key)
        for name, own in keys.items()
        for key in (own or [None])
    }
    first = next(iter(keys), None)
    chosen = [
        pair for label, pair in named.items() if metric in (label, pair[0]) or (metric is None and pair[0] == first)
    ]
    if not chosen:
        raise ConfigError(f"{path}: samples have no score '{metric}', but {', '.join(named) or 'none at all'}.")
    reducers: dict[str | None, None] = {}
    for summary in summaries:
        if has_epochs and _scorer_of(summary) == chosen[0][0]:
            reducer = summary.get("reducer")
            reducers[None if reducer in (None, "mean") else str(reducer)] = None
    return [_Choice(scorer, key, reducer) for scorer, key in chosen for reducer in reducers or [None]]


def _item(sample: Mapping[str, Any], choice: _Choice, *, has_epochs: bool, path: Path) -> ItemScore:
    cluster = str(sample["id"])
    item_id = f"{cluster}/{sample.get('epoch', 1)}" if has_epochs else cluster
    if fault := sample.get("error") or sample.get("invalidation"):
        text = short_text(fault.get("message") or fault.get("reason")) or "without a message"
        return unscored(item_id, text, cluster=cluster, kind="sample_error")
    score = (sample.get("scores") or {}).get(choice.scorer)
    if score is None:
        return unscored(item_id, f"no score '{choice.scorer}'", cluster=cluster)
    value = _number(score["value"], choice.key, path)
    if not math.isfinite(value):
        return unscored(item_id, str(score.get("reason") or "the value is no number"), cluster=cluster)
    completion, reason = short_text(score.get("answer")), _finish_reason(sample)
    return ItemScore(item_id, cluster, value, completion=completion, finish_reason=reason)


def _finish_reason(sample: Mapping[str, Any]) -> str | None:
    """Return why the last completion ended; `length` also if a limit of inspect ended the sample."""
    choices = (sample.get("output") or {}).get("choices") or []
    reason = choices[0].get("stop_reason") if choices else None
    return "length" if sample.get("limit") or reason in CUT_REASONS else reason


def _reduced_items(reductions: Sequence[Mapping[str, Any]], choice: _Choice, path: Path) -> list[ItemScore]:
    own = [
        reduction
        for reduction in reductions
        if (reduction["scorer"], reduction.get("reducer")) == (choice.scorer, choice.reducer)
    ]
    if not own:
        raise DataError(
            f"{path}: the log has the total of '{choice.reducer}' over epochs, and no values by sample. "
            "Write it again with inspect score."
        )
    items = []
    for sample in own[-1]["samples"]:
        item_id, value = str(sample["sample_id"]), _number(sample["value"], choice.key, path)
        is_scored = math.isfinite(value)
        items.append(ItemScore(item_id, item_id, value) if is_scored else unscored(item_id, "no epoch has a number"))
    return items


def _number(value: Any, key: str | None, path: Path) -> float:
    """Convert like inspect's `value_to_float`: C, P, I, N are 1, 0.5, 0, 0; yes, true, no, false; numbers; else 0."""
    if key is not None:
        value = value.get(key) if isinstance(value, dict) else value
    if isinstance(value, list | dict):
        raise ConfigError(f"{path}: a score is {kind_text(value)}, not one number. Import another --metric.")
    if isinstance(value, str):
        if (known := _GRADES.get(value, _YES_NO.get(value.lower()))) is not None:
            return known
        try:
            number = float(value)
        except ValueError:
            return 0.0
        return number if math.isfinite(number) else 0.0
    return float("nan") if value is None else float(value)


def _own_mean(summaries: Sequence[Mapping[str, Any]], choice: _Choice) -> tuple[str, float] | None:
    """Return name and value of inspect's own mean of these scores, if it computed one."""
    for summary in summaries:
        if _scorer_of(summary) != choice.scorer or (choice.key or choice.scorer) != summary.get("name"):
            continue
        if summary.get("reducer") not in ((None, "mean") if choice.reducer is None else (choice.reducer,)):
            continue
        for name, metric in (summary.get("metrics") or {}).items():
            value = metric.get("value")
            if str(name).rpartition("/")[2] in ("accuracy", "mean") and isinstance(value, int | float):
                return str(name), float(value)
    return None


def _scorer_of(summary: Mapping[str, Any]) -> Any:
    return summary.get("scorer") or summary.get("name")


def _difference(items: Sequence[ItemScore], reported: tuple[str, float] | None) -> str:
    scored = [item for item in items if item.score is not None]
    if reported is None or not scored or not math.isfinite(reported[1]):
        return ""
    metric, mean = reported
    computed = float(np.mean([item.score for item in scored]))
    if math.isclose(computed, mean, rel_tol=MEAN_TOLERANCE, abs_tol=MEAN_TOLERANCE):
        return ""
    by_sample: dict[str, list[float]] = {}
    for item in scored:
        by_sample.setdefault(item.cluster, []).append(float(item.score or 0.0))
    of_samples = float(np.mean([np.mean(epochs) for epochs in by_sample.values()]))
    why = (
        "it counts samples alike, of however many epochs they have a score"
        if math.isclose(of_samples, mean, rel_tol=MEAN_TOLERANCE, abs_tol=MEAN_TOLERANCE)
        else f"it is not the mean of the {len(scored)} items that have a score"
    )
    return f"inspect's own {metric} is {mean:.6g}, the mean of the items {computed:.6g}: {why}"


def _content(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> bytes:
    if info.compress_type != ZSTANDARD:
        return archive.read(info)
    with path.open("rb") as file:
        file.seek(info.header_offset)
        head = file.read(_LOCAL_HEADER_BYTES)
        name_bytes, extra_bytes = struct.unpack("<HH", head[26:30])
        file.seek(name_bytes + extra_bytes, 1)
        packed = file.read(info.compress_size)
    try:
        data = bytes(pa.CompressedInputStream(pa.BufferReader(packed), "zstd").read())
    except OSError as error:
        raise DataError(f"{path}: '{info.filename}' is damaged: {error}. Make the log again.") from error
    if len(data) != info.file_size or zlib.crc32(data) != info.CRC:
        raise DataError(f"{path}: '{info.filename}' is damaged: its checksum differs. Make the log again.")
    return data
