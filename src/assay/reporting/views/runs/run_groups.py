"""Runs grouped by recipe: the runs of a group differ by their seed only.

A group always has all its runs, whichever of them a reader selected, so its mean depends on the records alone.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from assay.base.config import dotted_leaves
from assay.base.digest import sha256_of_json
from assay.base.errors import ConfigError
from assay.records.evaluation import Estimate
from assay.reporting.views.benchmark_history import ScoreRow, last_scores
from assay.reporting.views.runs.curve_window import RunColumns, grouped, run_columns
from assay.reporting.views.runs.run_list import current_summaries
from assay.reporting.views.runs.series import Series
from assay.reporting.views.view import AsWritten, View
from assay.statistics.benchmark_history import BestOfMany, best_of_many
from assay.statistics.mean_scores import mean_estimate
from assay.store.ledger.ledger import Ledger
from assay.store.ledger.summary import RunSummary

NOT_COMPARED = ("name", "seed", "loader.seed")
"""Keys of a recipe in which runs of a group may differ: a campaign gives each seed its own order of rows, too."""
SHOWN_CHANGES = 3
"""Parts of a group's title."""
MAX_LINES = 6
"""Lines of one plot."""
CURVE_COLUMNS = 240
BAND = (0, -1)
"""The outer ones of `curve_window.QUANTILES`."""


class GroupScore(View):
    """A metric or benchmark over the runs of a group, each at its last evaluated step."""

    name: str
    """Title of the headline metric, or a benchmark with the beginning of its version."""
    higher_is_better: bool
    num_seeds: int
    """Seeds with this score. Of several runs with one seed the newest counts: equal runs are no evidence."""
    estimate: Annotated[Estimate, AsWritten]
    """Mean over seeds, with Student's interval over them; of a single seed, its run's own interval over items."""


class RunGroup(View):
    """All runs of one recipe."""

    key: str
    """Digest of the recipe without name and seeds; new runs do not change it."""
    name: str
    """The recipe's, of the newest run."""
    runs: tuple[str, ...]
    """Newest first."""
    seeds: tuple[int, ...]
    """By run."""
    statuses: dict[str, int]
    """Number of runs by status."""
    patch: dict[str, Any]
    """Recipe keys in which the compared groups differ, with this group's values; first those that most others do not
    share."""
    scores: tuple[GroupScore, ...]
    """The headline metric and complete benchmarks."""
    device_hours: float
    """Training, all runs."""
    evaluation_hours: float


def group_key(recipe: Mapping[str, Any]) -> str:
    """Return the key of a recipe's group."""
    compared = {key: value for key, value in recipe.items() if key not in NOT_COMPARED}
    if isinstance(loader := compared.get("loader"), Mapping):
        compared["loader"] = {key: value for key, value in loader.items() if f"loader.{key}" not in NOT_COMPARED}
    return sha256_of_json(compared)[:12]


def run_groups(
    ledger: Ledger,
    *,
    runs: Iterable[str] = (),
    keys: Collection[str] = (),
    summaries: Sequence[RunSummary] | None = None,
) -> list[RunGroup]:
    """Return the groups of some runs and those with some keys, in the order of the arguments; without any, all groups,
    the one with the newest run first. `summaries`: of all runs, if they were read before. Raises `ConfigError` for an
    unknown run or key."""
    members: dict[str, list[RunSummary]] = {}
    group_of: dict[str, str] = {}
    for summary in current_summaries(ledger) if summaries is None else summaries:
        if not summary.run.is_drill:
            group_of[summary.run.run_id] = key = group_key(summary.run.recipe)
            members.setdefault(key, []).append(summary)
    runs = list(runs)
    if unknown := [run_id for run_id in runs if run_id not in group_of]:
        raise ConfigError(f"no run '{unknown[0]}'. 'assay runs' lists those that there are.")
    if unknown := [key for key in keys if key not in members]:
        raise ConfigError(f"no run has a recipe of group '{unknown[0]}'.")
    chosen = dict.fromkeys([*(group_of[run_id] for run_id in runs), *keys]) or members
    found = {key: members[key] for key in chosen}
    usual = _usual_values([summaries[0].run.recipe for summaries in found.values()])
    scores = _benchmark_scores(ledger, found)
    return [
        RunGroup(
            key=key,
            name=str(summaries[0].run.recipe.get("name") or ""),
            runs=tuple(summary.run.run_id for summary in summaries),
            seeds=tuple(map(_seed_of, summaries)),
            statuses=_counts([summary.status for summary in summaries]),
            patch=_patch(summaries[0].run.recipe, usual),
            scores=(*_headline_scores(summaries), *scores[key]),
            device_hours=sum(summary.device_s for summary in summaries) / 3600,
            evaluation_hours=sum(summary.evaluation_s for summary in summaries) / 3600,
        )
        for key, summaries in found.items()
    ]


def best_of_groups(groups: Sequence[RunGroup], name: str) -> BestOfMany | None:
    """Return whether the best of the groups in a score may be luck; None if fewer than two have an interval."""
    scores = [score for group in groups for score in group.scores if score.name == name]
    if not scores:
        return None
    estimates = [score.estimate for score in scores]
    ends = np.array([[estimate.value, estimate.low, estimate.high] for estimate in estimates], dtype=float)
    return best_of_many(*ends.T, higher_is_better=scores[0].higher_is_better)


def group_curves(
    ledger: Ledger, groups: Sequence[RunGroup], metric: str, *, highlighted: Sequence[str] = ()
) -> list[Series]:
    """Return a metric's mean over the runs of each group, with its band from the 10% to the 90% quantile, then the
    highlighted runs. If there are more groups than lines of a plot, one line is the mean over all runs."""
    runs = [run_id for group in groups for run_id in group.runs]
    columns = run_columns(ledger, runs, metric, columns=CURVE_COLUMNS)
    lines: list[tuple[str, Sequence[str]]] = [(f"{group_title(group)}, mean", group.runs) for group in groups]
    if len(groups) > MAX_LINES:
        lines = [(f"all {len(runs):,} runs, mean", runs)]
    index = {run_id: at for at, run_id in enumerate(runs)}
    series = [_mean_series(name, _rows(columns, [index[run_id] for run_id in chosen])) for name, chosen in lines]
    for run_id in highlighted[: MAX_LINES - len(series)]:
        if run_id in index:
            values = columns.last[index[run_id]]
            is_known = np.isfinite(values)
            series.append(Series(run_id, columns.steps[is_known].tolist(), values[is_known].tolist()))
    return [item for item in series if item.steps]


def group_title(group: RunGroup) -> str:
    """Return the patch of a group in short, after its recipe's name if there is more of it; keys that the recipe lacks
    are left out."""
    changes = [f"{key.rpartition('.')[2]}={value}" for key, value in group.patch.items() if value is not None]
    parts = changes if len(group.patch) <= SHOWN_CHANGES else [group.name, *changes[: SHOWN_CHANGES - 1]]
    return ", ".join(filter(None, parts)) or group.name or group.key


def _rows(columns: RunColumns, rows: Sequence[int]) -> RunColumns:
    tables = (table[rows] for table in (columns.minimum, columns.maximum, columns.last))
    return RunColumns(columns.step_width, columns.steps, *tables)


def _mean_series(name: str, columns: RunColumns) -> Series:
    curve = grouped(columns)
    lows, highs = (curve.quantiles[row].tolist() for row in BAND)
    return Series(name, curve.steps.tolist(), curve.mean.tolist(), (), lows, highs)


def _usual_values(recipes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the most frequent value, as text, of each key in which recipes differ."""
    leaves = [dict(dotted_leaves(recipe)) for recipe in recipes]
    keys = dict.fromkeys(key for found in leaves for key in found if key not in NOT_COMPARED)
    counts = {key: Counter(repr(found.get(key)) for found in leaves) for key in keys}
    return {key: count.most_common(1)[0][0] for key, count in counts.items() if len(count) > 1}


def _patch(recipe: Mapping[str, Any], usual: Mapping[str, str]) -> dict[str, Any]:
    leaves = dict(dotted_leaves(recipe))
    return {key: leaves.get(key) for key in sorted(usual, key=lambda key: repr(leaves.get(key)) == usual[key])}


def _counts(words: Sequence[str]) -> dict[str, int]:
    return {word: words.count(word) for word in dict.fromkeys(words)}


def _headline_scores(summaries: Sequence[RunSummary]) -> list[GroupScore]:
    by_metric: dict[tuple[str, bool], dict[int, float]] = {}
    for summary in summaries:  # newest first
        if summary.metric is not None and summary.value is not None:
            by_seed = by_metric.setdefault((summary.metric, bool(summary.higher_is_better)), {})
            by_seed.setdefault(_seed_of(summary), summary.value)
    return [
        GroupScore(
            name=name,
            higher_is_better=higher,
            num_seeds=len(by_seed),
            estimate=mean_estimate(np.array(list(by_seed.values()))),
        )
        for (name, higher), by_seed in by_metric.items()
    ]


def _benchmark_scores(ledger: Ledger, groups: Mapping[str, Sequence[RunSummary]]) -> dict[str, list[GroupScore]]:
    """Return the scores of each group on complete benchmarks."""
    by_run: dict[str, list[tuple[str, ScoreRow]]] = {}
    for version, score in last_scores(ledger):
        if not score.is_incomplete:
            by_run.setdefault(score.row.run_id, []).append((version, score))
    found: dict[tuple[str, str], dict[str, dict[int, ScoreRow]]] = {}
    for key, summaries in groups.items():
        for summary in summaries:  # newest first
            for version, score in by_run.get(summary.run.run_id, ()):
                by_seed = found.setdefault((score.benchmark, version), {}).setdefault(key, {})
                by_seed.setdefault(_seed_of(summary), score)
    names = [benchmark for benchmark, _ in found]
    scores: dict[str, list[GroupScore]] = {key: [] for key in groups}
    for (benchmark, version), by_group in sorted(found.items()):
        name = benchmark if names.count(benchmark) == 1 else f"{benchmark} ({version[:8]})"
        for key, by_seed in by_group.items():
            rows = list(by_seed.values())
            better = rows[0].higher_is_better
            scores[key].append(
                GroupScore(name=name, higher_is_better=better, num_seeds=len(rows), estimate=_estimate(rows))
            )
    return scores


def _seed_of(summary: RunSummary) -> int:
    return int(summary.run.recipe.get("seed") or 0)


def _estimate(scores: Sequence[ScoreRow]) -> Estimate:
    if len(scores) > 1:
        return mean_estimate(np.array([score.value for score in scores]))
    (score,) = scores
    return Estimate(value=score.value, low=score.low, high=score.high, method="one seed, over items")
