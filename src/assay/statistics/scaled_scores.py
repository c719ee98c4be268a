"""Scores of runs by scale: the input of `proxy`, read from an incomplete record.

A recipe counts only if it was run at every scale, because the question is which of the same recipes wins. At each
scale, seeds are cut to the smallest number that any recipe has, lowest first, so that all recipes are averaged over
equally many seeds.
"""

import csv
import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from assay.base.config import first_repeated
from assay.base.errors import DataError
from assay.base.shapes import Float64


class ScaledScore(NamedTuple):
    """One run's score; higher is better."""

    scale: float
    """Parameters, tokens or FLOP, the same quantity throughout."""
    recipe: str
    seed: int
    score: float


def scores_by_scale(
    runs: Iterable[ScaledScore],
) -> tuple[dict[float, Float64[np.ndarray, "recipe _"]], tuple[str, ...], tuple[str, ...]]:
    """Return scores [recipe, seed] by scale, the names of the recipes, and those left out: missing at some scale.

    Raises `DataError` for two scores of one run, or if no recipe was run at every scale.
    """
    table: dict[float, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        seeds = table[run.scale][run.recipe]
        if run.seed in seeds:
            raise DataError(f"recipe '{run.recipe}' at scale {run.scale:g} has two scores for seed {run.seed}.")
        seeds[run.seed] = run.score
    all_names = {recipe for by_recipe in table.values() for recipe in by_recipe}
    shared = tuple(sorted(recipe for recipe in all_names if all(recipe in by_recipe for by_recipe in table.values())))
    if len(table) < 2:
        raise DataError(f"{len(table)} scales on record; a proxy needs runs at two scales or more.")
    if not shared:
        raise DataError(
            f"no recipe was run at all {len(table)} scales; a proxy is judged on recipes that were. "
            "Leave out scales with few recipes."
        )
    scores = {scale: _rectangle(by_recipe, shared) for scale, by_recipe in table.items()}
    return scores, shared, tuple(sorted(all_names - set(shared)))


def read_scaled_scores(path: Path) -> list[ScaledScore]:
    """Read runs from a CSV file with columns scale, recipe, score and optionally seed (default 0)."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            names = reader.fieldnames or ()
            if twice := first_repeated([name.strip() for name in names]):
                raise DataError(f"{path}: the heading names '{twice}' twice. Keep one.")
            missing = {"scale", "recipe", "score"} - set(reader.fieldnames or ())
            if missing:
                raise DataError(
                    f"{path}: no column {', '.join(sorted(missing))}; found "
                    f"{', '.join(reader.fieldnames or ['nothing'])}. Expected scale, recipe, seed, score."
                )
            return [_run(row, f"{path}: line {number}") for number, row in enumerate(reader, start=2)]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not readable: {error}") from error


def _run(row: dict[str | None, Any], where: str) -> ScaledScore:
    if any(map(str.strip, row.pop(None, ()))):
        raise DataError(f"{where}: more cells than the heading names. A text with a comma stands between quotes.")
    try:
        run = ScaledScore(
            scale=float(row["scale"] or ""),
            recipe=row["recipe"] or "",
            seed=int(row.get("seed") or 0),
            score=float(row["score"] or ""),
        )
    except ValueError as error:
        raise DataError(f"{where}: {error}. Expected numbers in scale, seed and score.") from error
    if not run.recipe or not (math.isfinite(run.score) and 0.0 < run.scale < math.inf):
        raise DataError(f"{where}: {row} needs a recipe, a scale above 0 and a finite score.")
    return run


def _rectangle(by_recipe: dict[str, dict[int, float]], shared: tuple[str, ...]) -> Float64[np.ndarray, "recipe seed"]:
    num_seeds = min(len(by_recipe[recipe]) for recipe in shared)
    return np.array([[by_recipe[name][seed] for seed in sorted(by_recipe[name])[:num_seeds]] for name in shared])
