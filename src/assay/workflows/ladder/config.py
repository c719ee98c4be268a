"""The configuration of a ladder: a known-good config, changes to it in their order, and the gates between them.

    base       a recipe that was run
    rungs      the base at smaller sizes or fewer steps: de-risking runs, from which the loss at its own size follows
    changes    one key of the recipe each; a campaign each, on the newest known-good config
    gates      judged in addition to the campaign's own

The order is declared, and so is the error that all changes share (`rule.next_error_rate`).
"""

from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from assay.base.config import (
    FrozenConfig,
    LoadedConfig,
    WrongKeyError,
    first_repeated,
    read_config_file,
    set_dotted,
    validated,
)
from assay.base.errors import ConfigError
from assay.base.key_reference import key_reference
from assay.decision.candidate import BASELINE
from assay.decision.config import Benchmark, Candidate, Name, Share, StandardRule
from assay.records.ladder import BASE_STEP, OWN_SIZE, TOGETHER_STEP

MOST_NAME = 40
"""Characters of a campaign's name."""
LEAST_RUNGS = 6
"""Smaller rungs that a law and its back-test need, with two seeds each."""


class Rung(FrozenConfig):
    """The base at a smaller size, or for fewer steps. It is trained before the first change."""

    name: Name
    """Part of its runs' ids."""

    patch: dict[str, Any] = Field(min_length=1)
    """Dotted key of the recipe -> value, e.g. `trainer.max_steps: 200`. Several keys are fine here."""

    tries_changes: bool = False
    """Each change is tried here as well, by a campaign of its own that adopts nothing. It shows which gates would
    have had the same verdict at this size."""


class LossBandGate(FrozenConfig):
    """The held-out loss must lie in the band of a scaling law that is fitted to smaller runs of the base."""

    points: str | None = None
    """CSV of runs, as for `assay scaling fit`, that the law is fitted to. Null: the runs of the smaller rungs, six
    rungs or more."""

    confidence: Share = 0.99
    """Level of the band. It is used for every rung and change, so a lower one stops sound ladders more often."""


class StepTimeGate(FrozenConfig):
    """The measured step must not be slower than the throughput forecast of the change's recipe.

    The forecast is scaled by how far the known-good config is off its own, so a busy machine blames no change.
    """

    measure_s: PositiveFloat = 5.0
    """Seconds of real steps behind each forecast, on one worker and, if they fit, on two."""

    tolerance: NonNegativeFloat = 0.1
    """The forecast's interval is widened by this share."""


class CodeLengthGate(FrozenConfig):
    """The code length of the first pass must not be worse: every row is coded before the model learns it."""

    margin: PositiveFloat
    """The largest acceptable increase, in bits per row. The gate fails if the increase is certainly larger."""


class LadderGates(FrozenConfig):
    """Judged at the base's own size and at each rung that tries changes. One is required."""

    loss_band: LossBandGate | None = None
    """Null: not judged."""

    step_time: StepTimeGate | None = None
    """Null: not judged."""

    code_length: CodeLengthGate | None = None
    """Null: not judged."""

    warnings: bool = False
    """No run of the change may warn about its numbers where no run of the known-good config does: a loss that is not
    finite, diverges or spikes, one score for all rows, a sampler that differs from the policy."""

    @model_validator(mode="after")
    def _judges_something(self) -> "LadderGates":
        if not any(getattr(self, name) for name in type(self).model_fields):
            raise ValueError(f"no gate is set: give one of {', '.join(type(self).model_fields)}")
        return self


class LadderConfig(FrozenConfig):
    """Changes to a known-good config, one at a time, each judged by a campaign and further gates."""

    also_called: ClassVar = {"recipe": "base", "known_good": "base", "candidates": "changes"}

    name: Name
    """Part of its campaigns' names; its folder is `runs/campaigns/NAME`."""

    question: str
    """What the page answers."""

    base: str
    """The known-good config: a recipe's YAML file, or the `known_good.json` of a campaign. A finished run of it must
    be on record. Relative to the ladder's file."""

    rungs: tuple[Rung, ...] = ()
    """Smaller versions of the base, from the smallest to the largest."""

    changes: tuple[Candidate, ...] = Field(min_length=1)
    """In the order in which they are tried. Each has a patch of one key, and no two have the same key."""

    candidates_from: tuple[str, ...] = ()
    """JSON or YAML files with further changes under `candidates`, in the same form. They come after `changes`, in the
    files' order."""

    seeds: PositiveInt
    """Paired seeds of each campaign at its last look. Every campaign has fresh seeds."""

    looks: tuple[PositiveInt, ...] = ()
    """As in a campaign."""

    workers: PositiveInt = 1
    """Ranks of each run."""

    budget_device_hours: PositiveFloat
    """For training all runs of the ladder."""

    benchmarks: tuple[Benchmark, ...] = Field(min_length=1)
    """As in a campaign."""

    rule: StandardRule
    """The rule of every campaign. `confidence` is that of the whole ladder, and its error is spent over the
    changes. A `sealed` benchmark is refused: it opens once, and a ladder has many campaigns."""

    gates: LadderGates
    """Judged in addition to the campaign's own."""

    owner: str = ""
    """Owner of the next step."""

    @property
    def steps(self) -> tuple[str, ...]:
        """Names of all steps, in order."""
        return (BASE_STEP, *(change.name for change in self.changes), TOGETHER_STEP)

    @property
    def trial_rungs(self) -> tuple[str, ...]:
        """Rungs at which changes are tried, the base's own size last."""
        return (*(rung.name for rung in self.rungs if rung.tries_changes), OWN_SIZE)

    @property
    def campaign_names(self) -> list[str]:
        """Names of all campaigns that the ladder may declare."""
        changes = [self.campaign_name(change.name, rung) for change in self.changes for rung in self.trial_rungs]
        return [*changes, self.campaign_name(TOGETHER_STEP)]

    def change(self, name: str) -> Candidate:
        return next(change for change in self.changes if change.name == name)

    def at_rung(self, recipe: LoadedConfig, rung: str) -> LoadedConfig:
        """Return the recipe at the size of a rung."""
        values = deepcopy(recipe.values)
        patch = next((item.patch for item in self.rungs if item.name == rung), {})
        for key, value in patch.items():
            set_dotted(values, key, value, where=f"in the recipe of rung '{rung}'")
        return LoadedConfig(values, {**recipe.origins, **dict.fromkeys(patch, f"rung {rung}")})

    def campaign_name(self, step: str, rung: str = OWN_SIZE) -> str:
        """Return the name of a step's campaign."""
        return "-".join(filter(None, (self.name, step, rung)))

    @model_validator(mode="after")
    def _one_change_a_step(self) -> "LadderConfig":
        owners: dict[str, str] = {}
        for index, change in enumerate(self.changes):
            at = f"changes.{index}.patch"
            if not change.patch:
                raise WrongKeyError(at, f"change '{change.name}' has no patch; a ladder changes keys of one recipe")
            if len(change.patch) > 1:
                raise WrongKeyError(at, several_changes_text(change.name, change.patch))
            (key,) = change.patch
            for other, owner in owners.items():
                if f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}."):
                    message = f"changes '{owner}' and '{change.name}' both set {other}, so their gains do not add up"
                    raise WrongKeyError(at, f"{message}. Compare them as candidates of one campaign first")
            if rung := next((rung.name for rung in self.rungs if rung.tries_changes and key in rung.patch), ""):
                message = f"change '{change.name}' sets {key}, and so does rung '{rung}', which tries changes"
                raise WrongKeyError(at, f"{message}. Leave tries_changes out there, or the change")
            owners[key] = change.name
        return self

    @model_validator(mode="after")
    def _names_are_distinct(self) -> "LadderConfig":
        changes, rungs = ([item.name for item in items] for items in (self.changes, self.rungs))
        if reserved := {BASE_STEP, TOGETHER_STEP, BASELINE}.intersection(changes):
            raise WrongKeyError("changes", f"'{min(reserved)}' is a name of the ladder's own; give the change another")
        names = [*self.campaign_names, *map(self.campaign_name, rungs)]
        for key, of_kind in {"rungs": rungs, "changes": changes, "name": names}.items():
            if repeated := first_repeated(of_kind):
                what = "campaigns would be called" if key == "name" else f"{key} have the name"
                raise WrongKeyError(key, f"two {what} '{repeated}'; rename one")
        if len(longest := max(names, key=len)) > MOST_NAME:
            message = f"a campaign would be called '{longest}', and names have at most {MOST_NAME} characters"
            raise WrongKeyError("name", f"{message}. Shorten the names of ladder, change or rung")
        return self

    @model_validator(mode="after")
    def _gates_have_what_they_need(self) -> "LadderConfig":
        if self.rule.sealed is not None:
            message = "a sealed benchmark opens once, and a ladder has many campaigns. Remove it here, and compare the"
            raise WrongKeyError("rule.sealed", f"{message} last known-good config with the base in one more campaign")
        band = self.gates.loss_band
        if band is not None and band.points is None and len(self.rungs) < LEAST_RUNGS:
            message = f"a law of the loss needs {LEAST_RUNGS} rungs to be tested on, and there are {len(self.rungs)}"
            raise WrongKeyError("gates.loss_band", f"{message}. Add rungs, or name a CSV of earlier runs as points")
        return self


def several_changes_text(change: str, keys: Iterable[str]) -> str:
    """Return why a change of several keys is refused."""
    return f"change '{change}' changes {' and '.join(keys)} at once. Make it several changes, one key each"


def read_ladder(file: Path, overrides: tuple[str, ...] = ()) -> LadderConfig:
    """Read a ladder file and the changes of the files that it names. Raises `ConfigError` that lists every wrong key
    with a hint."""
    loaded = read_config_file(file, overrides)
    named, changes = (loaded.values.get(key) or [] for key in ("candidates_from", "changes"))
    if isinstance(named, list | tuple) and isinstance(changes, list):
        further = [item for name in named for item in _candidates_in(file.parent / str(name))]
        loaded = loaded._replace(values={**loaded.values, "changes": [*changes, *further]})
    return validated(LadderConfig, loaded)


def _candidates_in(path: Path) -> list[Any]:
    found = read_config_file(path, ()).values.get("candidates")
    if not isinstance(found, list):
        raise ConfigError(f"{path}: has no list 'candidates', and candidates_from names it.")
    return found


KEYS_HEAD = (
    "# Ladders, key by key",
    "",
    "A ladder is a YAML file (see ladder.md); `a.b=value` on the command line overrides it; unknown keys are",
    "refused. This page is what `assay decide keys --ladder` prints.",
)


def ladder_reference() -> str:
    """Return the page with every key of a ladder file."""
    return key_reference(KEYS_HEAD, LadderConfig)
