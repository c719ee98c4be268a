"""Requests to replay a step or a rollout, and their checks, which need no torch and so fail early."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from assay.base.errors import ConfigError
from assay.records.run import Run
from assay.store.metrics.recorded import RecordedStep
from assay.training.trainer.config import TrainerConfig
from assay.training.trainer.method_config import MethodConfig

Mode = Literal["watch", "audit-ops"]


@dataclass(frozen=True)
class ReplayRequest:
    """Which steps to run again, and what to inspect."""

    step: int
    through_step: int | None = None
    """Continue to this step, e.g. one with recorded weights; None stops at `step`."""
    attempt: int | None = None
    """Compare with this attempt's record; None: with the attempt that was committed."""
    lane: int | None = None
    """Run only this lane of `step`."""
    mode: Mode | None = None
    """Inspect each operator of `step`."""
    search_rows: bool = False
    """Search for the rows that make `step` bad."""

    @property
    def last_step(self) -> int:
        return self.step if self.through_step is None else self.through_step

    def check(self, run: Run, trainer: TrainerConfig, *, num_lanes: int, last_step: int) -> None:
        """Raise `ConfigError` if the run cannot be replayed as requested; its last step and number of lanes are
        given."""
        if run.parent is not None and self.step <= run.parent.step:
            raise ConfigError(
                f"--step {self.step}: run '{run.run_id}' was forked at step {run.parent.step}; earlier steps "
                f"belong to run '{run.parent.run_id}': 'assay runs replay {run.parent.run_id} --step "
                f"{self.step}'."
            )
        if trainer.gradient_sum != "tree":
            raise ConfigError(
                f"the run added its gradients by {trainer.gradient_sum}, whose bits depend on the world "
                "size, so its steps cannot be replayed exactly. Train with trainer.gradient_sum=tree."
            )
        if not 1 <= self.step <= last_step:
            raise ConfigError(f"--step {self.step}: the run has the steps 1 to {last_step}.")
        if not self.step <= self.last_step <= last_step:
            raise ConfigError(
                f"--through {self.last_step}: it must be from --step {self.step} to {last_step}, the run's last step."
            )
        if self.lane is not None and not 0 <= self.lane < num_lanes:
            raise ConfigError(f"--lane {self.lane}: the run has the lanes 0 to {num_lanes - 1}.")

    def check_attempt(self, steps: Mapping[int, RecordedStep]) -> None:
        """Raise `ConfigError` if the attempt never reached the step; another attempt's record would be used
        silently."""
        if self.attempt is None:
            return
        own = [step for step, recorded in steps.items() if recorded.attempt == self.attempt]
        if own and min(own) <= self.step <= max(own) + 1:  # max(own) + 1 is the step in which it died
            return
        recorded = f"it ran steps {min(own)} to {max(own)}" if own else "it has no step on record"
        raise ConfigError(
            f"--attempt {self.attempt} --step {self.step}: {recorded}. 'assay runs show' lists the attempts; without "
            "--attempt, the committed one is used."
        )


class RolloutRequest(NamedTuple):
    """Which completion of a step to generate again."""

    step: int
    row: int
    """Row id of the prompt."""
    sample: int
    """Index of the completion in its group."""

    def check(
        self,
        run: Run,
        trainer: TrainerConfig,
        method: MethodConfig,
        *,
        num_lanes: int,
        last_step: int,
        steps: Mapping[int, RecordedStep],
    ) -> None:
        """Raise `ConfigError` if the run, with these `steps` on record, has no such completion."""
        if method.completions_per_prompt is None:
            raise ConfigError(
                f"run '{run.run_id}' is of method {method.type}, which trains on the rows of its dataset and has "
                f"no rollouts. 'assay runs replay {run.run_id} --step {self.step}' runs the step again."
            )
        ReplayRequest(self.step).check(run, trainer, num_lanes=num_lanes, last_step=last_step)
        if self.step > max(steps, default=0) + 1:  # max(steps) + 1 is the step in progress
            nearest = f"the nearest is step {max(steps)}" if steps else "no step is on record"
            raise ConfigError(f"--step {self.step}: run '{run.run_id}' has not reached it; {nearest}.")
        if not 0 <= self.sample < method.completions_per_prompt:
            raise ConfigError(
                f"--sample {self.sample}: each prompt has the samples 0 to {method.completions_per_prompt - 1}."
            )
