"""What a user chooses about training itself; the method and the batches have their own configurations."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from assay.base.config import FrozenConfig

Precision = Literal["auto", "float32", "bfloat16"]


class ScheduleConfig(FrozenConfig):
    """The learning rate over the steps: a linear rise, then a fall to `final_fraction` of the peak."""

    type: Literal["constant", "linear", "cosine"] = "cosine"

    warmup_steps: NonNegativeInt = 0
    """Optimizer steps until the peak."""

    final_fraction: float = Field(default=0.1, ge=0.0, le=1.0)
    """A share of the peak, at the last step; unused by `constant`."""


class OptimizerConfig(FrozenConfig):
    """AdamW (Loshchilov & Hutter 2019)."""

    learning_rate: PositiveFloat = 1e-4
    """Peak."""

    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)

    epsilon: PositiveFloat = 1e-8

    weight_decay: NonNegativeFloat = 0.01
    """On matrices; never on biases, norms and other vectors."""

    max_gradient_norm: PositiveFloat | None = 1.0
    """Longer gradients are scaled down to this 2-norm; null never clips."""

    schedule: ScheduleConfig = ScheduleConfig()


class TrainerConfig(FrozenConfig):
    """How long, how precisely, and how often it is made durable."""

    epochs: PositiveInt = 1

    max_steps: PositiveInt | None = None
    """Stop after this many optimizer steps, even in the midst of an epoch."""

    optimizer: OptimizerConfig = OptimizerConfig()

    precision: Precision = "auto"
    """`auto` is bfloat16 autocast on a GPU that has it, else float32. Weights stay float32."""

    gradient_sum: Literal["tree", "all_reduce"] = "tree"
    """`tree` gives the same bits at every world size; `all_reduce` is the backend's own, for comparison."""

    commit_every: PositiveInt | Literal["auto"] = 100
    """Optimizer steps between commits: what a death can cost at most. `auto` weighs the measured cost of a
    commit against how often the run has died."""

    evaluate_every: PositiveInt | None = None
    """Optimizer steps between evaluations on the validation split, each with a commit; null evaluates at the
    end."""

    spot_check_every: PositiveInt | None = 200
    """Optimizer steps between spot checks, in which each rank recomputes a lane of another and compares the
    bits; rounded so that checks and commits coincide (see docs/replay.md). A commit of a checked step is what a
    run goes back to when a device is found to compute wrongly; null checks nothing."""

    threads_per_rank: PositiveInt = 1
    """Threads of one rank's arithmetic on a CPU. Part of the numbers: another count, other bits."""

    def is_spot_checked(self, step: int) -> bool:
        """Whether step number `step` is: every `spot_check_every` steps, rounded to steps that commit."""
        every, commit_every = self.spot_check_every, self.commit_every
        if every is None:
            return False
        if commit_every == "auto":
            return step % every == 0
        if commit_every < every:
            return step % (commit_every * round(every / commit_every)) == 0
        return step % every == 0 or step % commit_every == 0
