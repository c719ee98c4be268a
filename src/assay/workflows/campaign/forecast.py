"""Forecast the gain at the target scale from recorded campaigns of the same patch at other scales.

    decisions of the named campaigns and this look --> gain of each pair of seeds, scale of its runs
        --> evidence.scaling.gain --> GainForecast, or the sentence why there is none

If no forecast is possible, the clause stays undecided and states what is missing; this is no error.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from assay.base.errors import DataError
from assay.decision.config import ScalingRule
from assay.decision.facts import Facts, ForecastFacts, TargetGain
from assay.records.campaign import CampaignRun
from assay.records.decision import Decision, Source
from assay.statistics.scaling.from_runs import scale_of_run
from assay.statistics.scaling.gain import GainsAtScale, forecast_gain
from assay.store.ledger.ledger import Ledger
from assay.workflows.campaign.folder import OpenCampaign, find_campaign
from assay.workflows.campaign.memo import newest_decisions


def forecast_of(campaign: OpenCampaign, facts: Facts, rule: ScalingRule, ledger: Ledger) -> ForecastFacts:
    """Forecast the gain of a candidate at the target scale."""
    assert rule.target is not None, "a rule without a target names a record"
    sources: list[Source] = []
    try:
        rungs = [_this(campaign, facts, ledger, rule.scale)]
        for name in rule.campaigns:
            decision = _comparable(name, campaign, facts)
            sources.append(Source(path=f"campaigns/{name}/{decision.path()}", sha256=decision.digest()))
            scale = _mean_scale(decision.runs, ledger, rule.scale)
            rungs.append(GainsAtScale(name, scale, list(_gains(decision))))
        gain = forecast_gain(rungs, scale_name=rule.scale, target=rule.target).gain
        assert gain.low is not None, "a forecast has a band"
        return ForecastFacts(TargetGain(gain.low, gain.value), "", tuple(sources))
    except DataError as error:
        return ForecastFacts(None, str(error), tuple(sources))


def _this(campaign: OpenCampaign, facts: Facts, ledger: Ledger, scale: str) -> GainsAtScale:
    gains = np.mean([facts.benchmarks[name].by_seed for name in campaign.config.rule.primary], axis=0)
    return GainsAtScale(campaign.config.name, _mean_scale(facts.runs, ledger, scale), gains.tolist())


def _comparable(name: str, campaign: OpenCampaign, facts: Facts) -> Decision:
    """Return the newest decision of campaign `name` on the same patch and benchmarks."""
    decision = newest_decisions(find_campaign(campaign.home, name)).get(facts.candidate)
    if decision is None:
        raise DataError(f"Campaign '{name}' has decided nothing on '{facts.candidate}' yet. Run it to a look.")
    patch = campaign.config.candidate(facts.candidate).patch
    if decision.patch != patch:
        raise DataError(
            f"Campaign '{name}' tried '{facts.candidate}' with another patch: {decision.patch}, not {patch}. "
            "Name campaigns of the same candidate."
        )
    primary = [effect.benchmark for effect in decision.effects if effect.role == "primary"]
    if set(primary) != set(campaign.config.rule.primary) or decision.unit != facts.unit:
        raise DataError(
            f"Campaign '{name}' measured {', '.join(primary)} in {decision.unit}; this one measures "
            f"{', '.join(campaign.config.rule.primary)} in {facts.unit}. One law needs one measure."
        )
    return decision


def _gains(decision: Decision) -> Iterator[float]:
    primary = [effect.by_seed for effect in decision.effects if effect.role == "primary"]
    for values in zip(*primary, strict=True):
        yield sum(values) / len(primary)


def _mean_scale(runs: Sequence[CampaignRun], ledger: Ledger, scale: str) -> float:
    """Return the mean scale of the baseline's runs, which come first; a patch may change the scale a little."""
    return float(np.mean([scale_of_run(ledger, run.run_id, scale) for run in runs if run.arm == runs[0].arm]))
