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
    newest = newest_decisions(campaign.folder)
    together, alone = (
        newest[TOGETHER_STEP],
        {item.candidate: newest[item.candidate].effect for item in ladder_decisions},
    )
    scored = [score_finished_runs(campaign, arm, scoring) for arm in campaign.config.arm_names]
    seeds = min(map(len, scored))
    arms = [runs[:seeds] for runs in scored]
    interaction, total = (_contrast(campaign, together, arms, to_forecast=flag) for flag in (False, True))
    assert interaction.low is not None and interaction.high is not None, "a look has two seeds or more"
    is_additive = interaction.low <= 0.0 <= interaction.high
    then = {item.candidate: item.effect for item in ladder_decisions}
    estimates = {"interaction": interaction, "sum": total, "together": together.effect}
    values: dict[str, Any] = {name: estimate.model_dump() for name, estimate in estimates.items()}
    values |= {
        "alone": {name: effect.model_dump() for name, effect in alone.items()},
        "changes": [] if is_additive else _interacting(alone, then),
        "seeds": seeds,
    }
    return Clause(
        name="interaction",
        type="interaction",
        verdict="pass" if is_additive else "fail",
        reason="additive" if is_additive else "less than the sum" if interaction.value < 0.0 else "more than the sum",
        value=interaction.value,
        bound=0.0,
        unit=together.unit,
        values=values,
    )


def _contrast(
    campaign: OpenCampaign, together: Decision, arms: Sequence[Sequence[ScoredRun]], *, to_forecast: bool
) -> Estimate:
    """Return the forecast of the sum less the base; or all changes together less the forecast. `arms`: the base's runs,
    each change's, and those of all together."""
    config, seeds, found = campaign.config, len(arms[0]), {}
    for benchmark in config.open_benchmarks:
        folders = [run.folders[benchmark.name] for runs in arms for run in runs]
        matrix, results = read_score_matrix(folders), [load_result(folder) for folder in folders]
        base, *alone, whole = matrix.scores.reshape(len(arms), seeds, -1)
        forecast: Floats = base + np.sum([scores - base for scores in alone], axis=0)
        pair = matrix._replace(scores=np.concatenate((base, forecast) if to_forecast else (forecast, whole)))
        found[benchmark.name] = benchmark_facts(benchmark, "primary", pair, (*results[:seeds], *results[-seeds:]))
    runs = [run.record for run in (*arms[0], *arms[-1])]
    look = together.look.model_copy(update={"num_seeds": seeds})
    return facts_of(config, TOGETHER_STEP, look, found, runs, recipe={}).estimate


def _interacting(alone: dict[str, Estimate], then: dict[str, Estimate]) -> list[str]:
    """Return the change whose gain on the earlier ones differs most from its gain alone, after those earlier ones."""
    names = list(alone)

    def distance(name: str) -> float:
        before, after = alone[name], then[name]
        return abs(after.value - before.value) / float(np.hypot(_width(before), _width(after)))

    return names[: names.index(max(names[1:], key=distance)) + 1]


def _width(estimate: Estimate) -> float:
    assert estimate.low is not None and estimate.high is not None, "a look has two seeds or more"
    return max(estimate.high - estimate.low, 1e-12)
