"""Estimate the cost of a campaign's runs from some seconds of baseline steps."""

from pathlib import Path
from typing import NamedTuple

from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.decision.candidate import known_good_recipe, patched
from assay.decision.config import CampaignConfig
from assay.decision.sentences import device_time_text
from assay.workflows.calibration import calibrate
from assay.workflows.preview import expected_s, preview
from assay.workflows.run import check_recipe


class ExpectedCost(NamedTuple):
    """Expected device-seconds; candidates are assumed to cost as much as the baseline."""

    run_s: float
    num_runs: int
    budget_s: float

    @property
    def num_held(self) -> int:
        return min(self.num_runs, int(self.budget_s / self.run_s))

    def line(self) -> str:
        whole = self.run_s * self.num_runs
        text = (
            f"cost: about {device_time_text(whole)} for {number_of(self.num_runs, 'run')} of "
            f"{device_time_text(self.run_s)}, as fast as the baseline's steps are here"
        )
        if self.num_held == self.num_runs:
            return text
        return f"{text}; budget_device_hours fits {self.num_held} of them"


def expected_cost(config: CampaignConfig, *, base_dir: Path, seconds: float) -> ExpectedCost:
    """Measure for `seconds`. Raises `ConfigError` if the budget does not fit a single run."""
    recipe, _ = known_good_recipe(base_dir / config.recipe)
    values = patched(recipe, {}, arm=config.baseline, seed=config.first_seed)
    found = preview(*check_recipe(values), world_size=config.workers)
    measured = calibrate(values, world_size=config.workers, seconds=seconds)
    cost = ExpectedCost(
        run_s=config.workers * expected_s(found, measured),
        num_runs=len(config.arm_names) * config.seeds,
        budget_s=3600 * config.budget_device_hours,
    )
    if cost.num_held == 0:
        raise ConfigError(
            f"budget_device_hours={config.budget_device_hours:g} ({device_time_text(cost.budget_s)}) does not "
            f"fit the first run, which takes about {device_time_text(cost.run_s)} here. All "
            f"{number_of(cost.num_runs, 'run')} take about {cost.run_s * cost.num_runs / 3600:.2g} "
            "device-hours."
        )
    return cost
