"""What of a run is to be made again, and whether it can be: known without torch, so it is said at once."""

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
    """What to run again, and what to look at."""

    step: int
    through_step: int | None = None
    """Go on to this step, e.g. one whose weights are on record; None stops at `step`."""
    attempt: int | None = None
    """Compare with this attempt's record; None with the one that counts."""
    lane: int | None = None
    """Only this lane of `step`."""
    mode: Mode | None = None
    """Look at every operator of `step`."""
    search_rows: bool = False
    """Look for the rows that make `step` bad."""

    @property
    def last_step(self) -> int:
        """The last that is made."""
        return self.step if self.through_step is None else self.through_step

    def check(self, run: Run, trainer: TrainerConfig, *, num_lanes: int, last_step: int) -> None:
        """Raise `ConfigError` for what the run, whose last step and lanes these are, cannot make again."""
        if run.parent is not None and self.step <= run.parent.step:
            raise ConfigError(
                f"--step {self.step}: run '{run.run_id}' was forked at step {run.parent.step}; what is before "
                f"that was made by run '{run.parent.run_id}': 'assay replay {run.parent.run_id} --step "
                f"{self.step}'."
            )
        if trainer.gradient_sum != "tree":
            raise ConfigError(
                f"the run added its gradients by {trainer.gradient_sum}, whose bits depend on the world "
                "size, so no step of it can be made again exactly. Train with trainer.gradient_sum=tree."
            )
        if not 1 <= self.step <= last_step:
            raise ConfigError(f"--step {self.step}: the run has the steps 1 to {last_step}.")
        if not self.step <= self.last_step <= last_step:
            raise ConfigError(
                f"--through {self.last_step}: it goes on from --step {self.step}, so it is one of "
                f"{self.step} to {last_step}, the run's last step."
            )
        if self.lane is not None and not 0 <= self.lane < num_lanes:
            raise ConfigError(f"--lane {self.lane}: the run has the lanes 0 to {num_lanes - 1}.")

    def check_attempt(self, steps: Mapping[int, RecordedStep]) -> None:
        """Refuse an attempt that never came to the step: another's record would be compared without a word."""
        if self.attempt is None:
            return
        own = [step for step, recorded in steps.items() if recorded.attempt == self.attempt]
        if own and min(own) <= self.step <= max(own) + 1:  # the one behind its last is the step that it died in
            return
        recorded = f"it made the steps {min(own)} to {max(own)}" if own else "it has no step on record"
        raise ConfigError(
            f"--attempt {self.attempt} --step {self.step}: {recorded}. 'assay show' lists the attempts; without "
            "--attempt the one that counts is taken."
        )


class RolloutRequest(NamedTuple):
    """Which answer of a step is to be drawn again."""

    step: int
    row: int
    """The prompt's."""
    sample: int
    """Which of the answers to it, from 0."""

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
        """Raise `ConfigError` for what the run, with these `steps` on record, cannot have said."""
        if method.completions_per_prompt is None:
            raise ConfigError(
                f"run '{run.run_id}' is of method {method.type}, which learns from the rows of its dataset: "
                f"its model says nothing in a step. 'assay replay {run.run_id} --step {self.step}' makes that "
                "again."
            )
        ReplayRequest(self.step).check(run, trainer, num_lanes=num_lanes, last_step=last_step)
        if self.step > max(steps, default=0) + 1:  # the one behind the last: in which it died, or is now
            nearest = f"the nearest is step {max(steps)}" if steps else "no step is on record"
            raise ConfigError(f"--step {self.step}: run '{run.run_id}' has not come so far; {nearest}.")
        if not 0 <= self.sample < method.completions_per_prompt:
            raise ConfigError(
                f"--sample {self.sample}: each prompt has the answers 0 to {method.completions_per_prompt - 1}."
            )
