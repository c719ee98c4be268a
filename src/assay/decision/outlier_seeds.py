"""Warnings about seeds that violate the assumptions: outlier runs, and runs that are not independent.

Outliers and underdispersion are found in the scores (`statistics.seeds.outliers`), equal weights in the records of the
runs. No verdict depends on them: the reader decides whether a run crashed.
"""

from collections.abc import Iterator

import numpy as np

from assay.decision.config import CampaignConfig
from assay.decision.facts import Facts, Floats
from assay.decision.sentences import effect_text
from assay.statistics.seeds.outliers import is_underdispersed, outlier_runs
from assay.statistics.seeds.trimmed import MIN_SEEDS, inner_seeds
from assay.statistics.warnings import Warned


def warnings_of_seeds(config: CampaignConfig, facts: Facts) -> Iterator[Warned]:
    """Warn about outliers, equal weights and underdispersion among the runs."""
    scores, runs = _scores_of_runs(facts), facts.runs
    for found in outlier_runs(scores, facts.composite):
        run = runs[found.arm * facts.num_seeds + found.seed_index]
        side = "below" if found.distance < 0.0 else "above"
        far = effect_text(abs(found.distance), facts.unit, signed=False)
        yield Warned(
            "outlier seed",
            f"{run.arm} with seed {run.seed} scores {far} {side} the mean of its other seeds, more than these "
            "scatter: one run that crashed or was lucky, or an arm that scatters more, decides this comparison."
            f"{_instead(config, facts)}",
        )
    yield from _equal_weights(facts)
    if is_underdispersed(facts.composite):
        yield Warned(
            "underdispersed seeds",
            f"the gains of the {facts.num_seeds} seeds scatter less than the noise of their own items implies: "
            "the runs may share more than the recipe, and are then worth fewer than they are.",
        )


def left_out_words(facts: Facts) -> str:
    """Return which seeds the trimmed effect leaves out; empty for the mean."""
    if facts.over_seeds == "mean":
        return ""
    gains = np.diff(_scores_of_runs(facts), axis=0)[0]
    without = [run.seed for run, is_inner in zip(facts.runs, inner_seeds(gains), strict=False) if not is_inner]
    return f", without the best and the worst of them (seeds {' and '.join(map(str, sorted(without)))})"


def _scores_of_runs(facts: Facts) -> Floats:
    """Return [arm, seed] means over the primary benchmarks; higher is better."""
    primary = [facts.benchmarks[name] for name in facts.breadth.of_benchmarks]
    means = [
        [np.average(arm, axis=1, weights=benchmark.weights) for arm in (benchmark.baseline, benchmark.candidate)]
        for benchmark in primary
    ]
    found: Floats = np.mean(means, axis=0)
    return found


def _equal_weights(facts: Facts) -> Iterator[Warned]:
    seeds: dict[tuple[str, str], list[int]] = {}
    for run in facts.runs:
        if run.weights_digest:
            seeds.setdefault((run.arm, run.weights_digest), []).append(run.seed)
    for (arm, _), same in seeds.items():
        if len(same) > 1:
            listed = " and ".join(map(str, same))
            yield Warned(
                "underdispersed seeds",
                f"{arm} with seeds {listed} ended with the same weights: that is one run, counted {len(same)} times.",
            )


def _instead(config: CampaignConfig, facts: Facts) -> str:
    if config.rule.over_seeds != "mean" or facts.num_seeds < MIN_SEEDS:
        return ""
    return " A campaign that declares over_seeds: trimmed goes by the others."
