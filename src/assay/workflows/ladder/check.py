"""Checks a ladder before its first run: the base was run, and every rung, change and combination can be."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from assay.base.clock import Clock
from assay.base.config import LoadedConfig, changed_leaves
from assay.base.errors import ConfigError
from assay.base.units import number_of
from assay.data.dataset.dataset import Dataset
from assay.decision.candidate import patched
from assay.decision.config import Candidate
from assay.records.ladder import BASE_STEP, OWN_SIZE
from assay.statistics.scaling.points import read_points
from assay.training.recipe import Recipe
from assay.workflows.campaign.check import CampaignCheck, check_arms, check_campaign
from assay.workflows.ladder.config import Rung, several_changes_text
from assay.workflows.ladder.folder import OpenLadder, find_base_run
from assay.workflows.ladder.rule import next_error_rate
from assay.workflows.run import check_new, check_recipe, count_steps
from assay.workflows.throughput.attempt import MIN_STEPS
from assay.workflows.throughput.calibrate import WARMING_STEPS


def check_ladder(ladder: OpenLadder, clock: Clock) -> CampaignCheck:
    """Check a ladder's file before anything starts. Raises `ConfigError` for the first problem.

    Returns what is known of the first change's campaign, with the runs of all steps but the last one.
    """
    find_base_run(ladder)
    config, (base, dataset) = ladder.config, check_recipe(_patched(ladder, {}))
    for rung in config.rungs:
        with _named(f"rung '{rung.name}'"):
            _check_rung(rung, (base, dataset), check_recipe(_patched(ladder, {}, rung.name)))
    for change in config.changes:
        with _named(f"change '{change.name}'"):
            _refuse_several(change, base, check_recipe(_patched(ladder, change.patch))[0])
    check_recipe(_patched(ladder, {key: value for change in config.changes for key, value in change.patch.items()}))
    _check_gates(ladder, base)
    error_rate = next_error_rate(1.0 - config.rule.confidence, len(config.changes), [])
    campaigns = [
        ladder.campaign(change.name, rung=rung, on=ladder.base, error_rate=error_rate, budget_device_hours=1.0)
        for change in config.changes
        for rung in config.trial_rungs
    ]
    num_runs = sum(check_arms(campaign, is_declared=campaign.is_declared) for campaign in campaigns)
    first = check_campaign(campaigns[len(config.trial_rungs) - 1], clock)
    return first._replace(num_runs=num_runs + len(config.rungs) * config.seeds)


def _patched(ladder: OpenLadder, patch: Mapping[str, Any], rung: str = OWN_SIZE) -> LoadedConfig:
    return patched(ladder.config.at_rung(ladder.base.recipe, rung), patch, arm=" ".join(patch) or BASE_STEP, seed=0)


@contextmanager
def _named(part: str) -> Iterator[None]:
    """Name the part of the ladder in an error about its recipe."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{part}: {error}") from error


def _check_rung(rung: Rung, base: tuple[Recipe, Dataset], found: tuple[Recipe, Dataset]) -> None:
    (recipe, dataset), steps = found, (count_steps(*base).planned, count_steps(*found).planned)
    if recipe == base[0] or (set(rung.patch) == {"trainer.max_steps"} and steps[0] == steps[1]):
        raise ConfigError(f"its patch changes nothing: the base has these values already, and {steps[0]} steps.")
    if recipe.data != base[0].data:
        raise ConfigError(
            "it has another dataset or split than the base, so their losses are of different rows. Change the size of "
            "the model or the number of steps."
        )
    check_new(recipe, dataset, changed=rung.patch)


def _refuse_several(change: Candidate, base: Recipe, recipe: Recipe) -> None:
    """Raise `ConfigError` if a change replaces a section of which it changes several keys. Another `type` of a section
    is one change."""
    before, after = (item.model_dump(mode="json") for item in (base, recipe))
    (key,) = change.patch
    keys = [leaf for leaf in changed_leaves(before, after) if leaf.startswith(f"{key}.")]
    if len(keys) > 1 and not any(leaf.endswith(".type") for leaf in keys):
        raise ConfigError(f"{several_changes_text(change.name, keys)}, in the order to try them.")


def _check_gates(ladder: OpenLadder, base: Recipe) -> None:
    gates = ladder.config.gates
    if gates.loss_band is not None and gates.loss_band.points is not None:
        read_points(ladder.base_dir / gates.loss_band.points)
    if gates.code_length is not None and base.method.coded is None:
        raise ConfigError(
            f"gates.code_length: the training loss of method '{base.method.type}' is not -log p of what it learns, so "
            "there is no code. Remove the gate."
        )
    if gates.step_time is None:
        return
    if base.trainer.gradient_sum != "tree":
        raise ConfigError("gates.step_time: trainer.gradient_sum=all_reduce has no forecast. Remove one of the two.")
    for rung in ladder.config.trial_rungs:
        steps = count_steps(*check_recipe(_patched(ladder, {}, rung))).planned
        if steps < (least := MIN_STEPS + WARMING_STEPS):
            where = f"rung '{rung}'" if rung else "the base"
            raise ConfigError(
                f"gates.step_time: {where} has {number_of(steps, 'step')}, and the time of a step needs {least}. Train "
                "longer, or remove the gate."
            )
