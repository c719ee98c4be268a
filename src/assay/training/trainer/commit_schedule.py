"""Decides when to commit: after a fixed number of steps, or (`auto`) at the interval that loses the least time.

`auto` weighs the measured cost of a commit against the failure rate so far. The schedule may depend on the
clock because the position of a commit changes no trained number; rank 0 decides for all ranks.
"""

from assay.base.clock import Clock
from assay.base.commit_interval import optimal_commit_interval_s
from assay.training.trainer.config import TrainerConfig

ASSUMED_COMMIT_S = 0.05
"""Cost of a commit that `auto` assumes until it has measured one in this attempt."""


class CommitSchedule:
    """Says when a commit is due, from this rank's clock."""

    def __init__(self, config: TrainerConfig, clock: Clock, *, failure_s: float) -> None:
        """`failure_s`: mean time between failures so far."""
        self._config = config
        self._clock = clock
        self._failure_s = failure_s
        self._next_s = clock.monotonic_s() + optimal_commit_interval_s(ASSUMED_COMMIT_S, failure_s)

    def is_due(self, step: int, last_step: int) -> bool:
        """Return whether step `step` must commit; all ranks return the same, because no clock is read."""
        config = self._config
        if step == last_step or (config.evaluate_every and step % config.evaluate_every == 0):
            return True
        return config.commit_every != "auto" and step % config.commit_every == 0

    def is_requested(self) -> bool:
        """Return whether this rank's clock requests a commit after the current step (`auto` only)."""
        return self._config.commit_every == "auto" and self._clock.monotonic_s() >= self._next_s

    def committed(self, commit_s: float) -> None:
        """Record that a commit has started and blocked training for `commit_s` seconds."""
        interval_s = optimal_commit_interval_s(commit_s, self._failure_s)
        self._next_s = self._clock.monotonic_s() + interval_s
