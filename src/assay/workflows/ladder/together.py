"""Whether the gains of the adopted changes add up.

A ladder measures each gain on what was adopted before, so its gains sum to the whole by construction and show no
interaction. One more campaign therefore trains, on fresh seeds, the base, each adopted change alone, and all of them:

    forecast of the sum = base + (change 1 - base) + (change 2 - base) + ..        item by item, seed by seed
    interaction         = all together - forecast of the sum

The difference is paired, so its interval is that of a campaign's effect. Fresh seeds keep it unbiased: the ladder's own
estimates are of changes that were selected for being large. An interaction is attributed to the change whose gain on
the earlier changes differs most from its gain alone.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from assay.decision.facts import Floats, benchmark_facts, facts_of
from assay.records.decision import Clause, Decision
from assay.records.evaluation import Estimate
from assay.records.ladder import TOGETHER_STEP
from assay.statistics.benchmark_items import load_result, read_score_matrix
from assay.workflows.campaign.evidence import ScoredRun, Scoring, score_finished_runs
from assay.workflows.campaign.folder import OpenCampaign, newest_decisions


def interaction_clause(campaign: OpenCampaign, scoring: Scoring, ladder_decisions: Sequence[Decision]) -> Clause:
    """Compare all adopted changes together with the forecast of their sum; it passes if 0 lies in the interval.

    `ladder_decisions`: those by which the changes were adopted, in order.
    """
    config, newest = campaign.config, newest_decisions(campaign.folder)
    scored = [score_finished_runs(campaign, arm, scoring) for arm in config.arm_names]
    num_seeds = min(map(len, scored))
    arms = [runs[:num_seeds] for runs in scored]
    interaction, total = (_contrast(campaign, arms, is_interaction=flag) for flag in (True, False))
    assert interaction.low is not None and interaction.high is not None, "a look has two seeds or more"
    is_additive = interaction.low <= 0.0 <= interaction.high
    alone = {decision.candidate: newest[decision.candidate].effect for decision in ladder_decisions}
    then = {decision.candidate: decision.effect for decision in ladder_decisions}
    values: dict[str, Any] = {
        "interaction": interaction.model_dump(),
        "sum": total.model_dump(),
        "together": newest[TOGETHER_STEP].effect.model_dump(),
        "alone": {name: effect.model_dump() for name, effect in alone.items()},
        "changes": [] if is_additive else _interacting(alone, then),
        "seeds": num_seeds,
    }
    return Clause(
        name="interaction",
        type="interaction",
        verdict="pass" if is_additive else "fail",
        reason="additive" if is_additive else "less than the sum" if interaction.value < 0.0 else "more than the sum",
        value=interaction.value,
        bound=0.0,
        unit=newest[TOGETHER_STEP].unit,
        values=values,
    )


def _contrast(campaign: OpenCampaign, arms: Sequence[Sequence[ScoredRun]], *, is_interaction: bool) -> Estimate:
    """Return all changes together less the forecast of their sum, or that forecast less the base, on the primary
    benchmarks. `arms`: the base's runs, each change's, and those of all together."""
    config, num_seeds = campaign.config, len(arms[0])
    found = {}
    for benchmark in config.open_benchmarks:
        folders = [run.folders[benchmark.name] for runs in arms for run in runs]
        matrix, results = read_score_matrix(folders), [load_result(folder) for folder in folders]
        base, *alone, together = matrix.scores.reshape(len(arms), num_seeds, -1)
        forecast: Floats = base + np.sum([scores - base for scores in alone], axis=0)
        pair = (forecast, together) if is_interaction else (base, forecast)
        of_pair = (*results[:num_seeds], *results[-num_seeds:])
        found[benchmark.name] = benchmark_facts(
            benchmark, "primary", matrix._replace(scores=np.concatenate(pair)), of_pair
        )
    decision = newest_decisions(campaign.folder)[TOGETHER_STEP]
    runs = [run.record for run in (*arms[0], *arms[-1])]
    look = decision.look.model_copy(update={"num_seeds": num_seeds})
    return facts_of(config, TOGETHER_STEP, look, found, runs, recipe={}).estimate


def _interacting(alone: dict[str, Estimate], then: dict[str, Estimate]) -> list[str]:
    """Return the change whose gain on the earlier ones differs most from its gain alone, after those earlier ones."""
    names = list(alone)

    def distance(name: str) -> float:
        return abs(then[name].value - alone[name].value) / float(np.hypot(_half(then[name]), _half(alone[name])))

    last = max(names[1:], key=distance)
    return names[: names.index(last) + 1]


def _half(estimate: Estimate) -> float:
    assert estimate.low is not None and estimate.high is not None, "a look has two seeds or more"
    return max((estimate.high - estimate.low) / 2.0, 1e-12)
