"""The folder of a ladder: its declaration, and a record for each step that is over.

runs/campaigns/NAME/
  ladder.json               Ladder: what was declared
  steps/CHANGE.json         LadderStep of a change; `base` before them, `together` after them
  ladder.html, ladder.md    the page
runs/campaigns/NAME-CHANGE/       the change's campaign at the base's own size
runs/campaigns/NAME-CHANGE-RUNG/  its campaign at a rung that tries changes
runs/NAME-RUNG-sSEED/             a run of the base at a rung

Each record is written once, as a whole. A step is decided from its campaigns' records, so a ladder that was killed at
any point continues with the first step that has no record.
"""

from collections.abc import Sequence
from os.path import relpath
from pathlib import Path
from typing import Any, NamedTuple

from assay.base.clock import Clock
from assay.base.config import LoadedConfig, changed_leaves, validated
from assay.base.digest import sha256_of_json
from assay.base.errors import ConfigError, DamagedDataError
from assay.decision.candidate import known_good_recipe
from assay.decision.config import CampaignConfig, Candidate, Gate, HarmCondition
from assay.records.campaign import run_id_of
from assay.records.decision import Decision, KnownGood
from assay.records.ladder import LADDER_FILE, OWN_SIZE, TOGETHER_STEP, Ladder, LadderStep
from assay.records.run import Run
from assay.store.commit_log import CommitLog
from assay.store.home import Home
from assay.store.objects import ObjectStore, open_store
from assay.training.recipe import Recipe, recipe_of
from assay.workflows.campaign.folder import KNOWN_GOOD_FILE, LoadedCampaign, declared_campaign, newest_decisions
from assay.workflows.ladder.config import LadderConfig, read_ladder
from assay.workflows.run import check_recipe

MAY_CHANGE = frozenset({"budget_device_hours", "workers", "owner"})
"""Keys that do not affect verdicts, and may change after the declaration."""


class KnownGoodConfig(NamedTuple):
    """The newest known-good config: what the next change is a patch on."""

    path: Path
    recipe: LoadedConfig
    record: KnownGood | None
    """None if the recipe is a file."""


class OpenLadder(NamedTuple):
    """A ladder file with its base; declared once `declare_ladder` has returned it."""

    home: Home
    config: LadderConfig
    base_dir: Path
    base: KnownGoodConfig
    record: Ladder | None = None

    @property
    def folder(self) -> Path:
        return self.home.campaigns / self.config.name

    @property
    def store(self) -> ObjectStore:
        return open_store(str(self.folder))

    def step(self, name: str) -> LadderStep | None:
        """Return the record of a step; None if it is not over. Raises `DamagedDataError` if it does not follow from
        its campaigns' decisions any more."""
        path = self.folder / _key(name)
        if not path.is_file():
            return None
        found = LadderStep.from_json(path.read_bytes(), source=path)
        for trial in found.trials:
            decision = self.decision(name, trial.rung) if trial.decision_sha256 else None
            if trial.decision_sha256 != (decision and decision.digest()):
                raise DamagedDataError(
                    f"{path}: does not follow from the decision of campaign '{trial.campaign}' any more, which was "
                    "changed or removed. Restore it, or begin a ladder with another name."
                )
        return found

    def steps(self) -> list[LadderStep]:
        """Return the steps that are over, in order."""
        return [step for name in self.config.steps if (step := self.step(name)) is not None]

    def decision(self, step: str, rung: str = OWN_SIZE) -> Decision | None:
        """Return the newest decision of a step's campaign on the step's own candidate."""
        return newest_decisions(self.home.campaigns / self.config.campaign_name(step, rung)).get(step)

    def keep(self, step: LadderStep) -> LadderStep:
        """Write the record of a step, or return the existing one."""
        self.store.put_if_absent(_key(step.step), step.to_json().encode())
        found = self.step(step.step)
        assert found is not None, "it was written above"
        return found

    def known_good(self, before: str = "") -> KnownGoodConfig:
        """Return the newest known-good config before a step, or the last one. It is the base again if all changes
        together harm."""
        found = self.base
        for step in self.steps():
            if step.step == before:
                break
            if step.step == TOGETHER_STEP and step.action == "roll back":
                found = self.base
            if step.action == "adopt":
                path = self.home.campaigns / self.config.campaign_name(step.step) / f"{step.step}.{KNOWN_GOOD_FILE}"
                found = KnownGoodConfig(path, *known_good_recipe(path))
        return found

    def run_ids(self, *, without: str = "") -> set[str]:
        """Return all declared runs except those of one campaign; those of the rungs have the ladder's name."""
        found = {self.config.name: {run for rung in self.config.rungs for run in self.rung_runs(rung.name)}}
        for name in set(self.config.campaign_names).intersection(self.home.campaign_names()):
            found[name] = declared_campaign(self.home.campaigns / name).run_ids()
        return {run_id for name, run_ids in found.items() for run_id in run_ids if name != without}

    def rung_runs(self, rung: str) -> list[str]:
        """Return the runs of the base at a rung, by seed."""
        return [run_id_of(self.config.name, rung, seed) for seed in range(self.config.seeds)]

    def adopted(self) -> list[Candidate]:
        """Return the adopted changes, in order."""
        return [self.config.change(step.step) for step in self.steps() if step.action == "adopt"]

    def campaign(
        self, step: str, *, rung: str = OWN_SIZE, on: KnownGoodConfig, error_rate: float, budget_device_hours: float
    ) -> LoadedCampaign:
        """Return the campaign of a change at a rung, on a known-good config; or, with the step `together`, that of the
        adopted changes, alone and together, on the base.

        Its rule has one more gate: a loss of more than the least effect on every primary benchmark.
        """
        own, rule = self.config, self.config.rule
        harms = tuple(HarmCondition(type="harm", benchmark=name, margin=rule.least_effect) for name in rule.primary)
        values = {
            "name": own.campaign_name(step, rung),
            "question": own.question,
            "recipe": relpath(on.path.resolve(), self.base_dir.resolve()),
            "candidates": _with_all(self.adopted()) if step == TOGETHER_STEP else (own.change(step),),
            "seeds": own.seeds,
            "looks": own.looks,
            "first_seed": own.steps.index(step) * own.seeds,
            "workers": own.workers,
            "budget_device_hours": budget_device_hours,
            "benchmarks": own.benchmarks,
            "rule": rule.model_copy(update={"confidence": 1.0 - error_rate}),
            "gates": (Gate(name="worse", then="rollback", when="all", conditions=harms),),
            "owner": own.owner,
        }
        config = validated(CampaignConfig, LoadedConfig(values, {}))
        recipe = own.at_rung(on.recipe, rung)
        return LoadedCampaign(self.home, config, self.base_dir, recipe, on.record if rung == OWN_SIZE else None)


def _with_all(changes: Sequence[Candidate]) -> tuple[Candidate, ...]:
    patch = {key: value for change in changes for key, value in change.patch.items()}
    return *changes, Candidate(name=TOGETHER_STEP, because="all adopted changes at once", patch=patch)


def load_ladder(home: Home, file: Path, overrides: tuple[str, ...] = ()) -> OpenLadder:
    """Read a ladder file and its base; nothing is written."""
    config = read_ladder(file, overrides)
    path = file.parent / config.base
    return OpenLadder(home, config, file.parent, KnownGoodConfig(path, *known_good_recipe(path)))


def declare_ladder(ladder: OpenLadder, clock: Clock) -> OpenLadder:
    """Write the declaration of a ladder. Raises `ConfigError` if its base was never run."""
    record = _declaration(ladder, find_base_run(ladder), clock)
    ladder.store.put_if_absent(LADDER_FILE, record.to_json().encode())
    opened = find_declared(ladder, clock)
    assert opened is not None, "it was written above"
    return opened


def find_declared(ladder: OpenLadder, clock: Clock) -> OpenLadder | None:
    """Return the ladder as it is declared; None if it is not. Raises `ConfigError` if the file has changed since."""
    path = ladder.folder / LADDER_FILE
    if not path.is_file():
        return None
    found = Ladder.from_json(path.read_bytes(), source=path)
    requested = _declaration(ladder, found.base_run, clock)
    if found.config_sha256 == requested.config_sha256:
        return ladder._replace(record=found)
    changed = [*changed_leaves(found.config, requested.config), *changed_leaves(found.recipe, requested.recipe)]
    raise ConfigError(
        f"ladder '{found.name}' was declared with another {', '.join(changed[:4])}. Its steps build on one another, so "
        "what was declared before the first run cannot be changed afterwards: give the ladder another name, or "
        f"restore the file. ({', '.join(sorted(MAY_CHANGE))} may change.)"
    )


def _declaration(ladder: OpenLadder, base_run: str, clock: Clock) -> Ladder:
    fixed, recipe = ladder.config.model_dump(mode="json", exclude=set(MAY_CHANGE)), ladder.base.recipe.values
    return Ladder(
        name=ladder.config.name,
        config=fixed,
        config_sha256=sha256_of_json({"config": fixed, "recipe": recipe}),
        recipe=recipe,
        base_run=base_run,
        base_dir=str(ladder.base_dir.resolve()),
        created_s=clock.now_s(),
    )


# The base was run


def find_base_run(ladder: OpenLadder) -> str:
    """Return a finished run of the base. Raises `ConfigError` if there is none."""
    recipe, dataset = check_recipe(ladder.base.recipe)
    target = _without_seeds(recipe)
    for run in ladder.home.runs():
        is_same = run.dataset_fingerprint == dataset.fingerprint and not run.is_recorded()
        if is_same and _without_seeds(recipe_of(run)) == target and _is_finished(run):
            return run.run_id
    raise ConfigError(
        f"base {ladder.base.path}: no finished run of it is on record in {ladder.home.folder}, so nothing shows that "
        f"it works. Train it first: 'assay train {ladder.base.path}'; or name a config that was run."
    )


def _without_seeds(recipe: Recipe) -> dict[str, Any]:
    """Return what decides a run but for its seeds, its dataset's path and its name."""
    tree = recipe.model_dump(mode="json", exclude={"name", "seed", "evaluation"})
    return {**tree, "data": {**tree["data"], "dataset": ""}, "loader": {**tree["loader"], "seed": 0}}


def _is_finished(run: Run) -> bool:
    return CommitLog(open_store(run.store_url)).finished() is not None


def _key(step: str) -> str:
    return f"steps/{step}.json"
