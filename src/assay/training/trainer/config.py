"""The training loop's configuration; the method and the batches have their own."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from assay.base.config import FrozenConfig

Precision = Literal["auto", "float32", "bfloat16"]


class ScheduleConfig(FrozenConfig):
    """The learning rate: a linear warm-up, then a decay to `final_fraction` of the peak."""

    also_called: ClassVar = {
        "warmup": "warmup_steps",
        "num_warmup_steps": "warmup_steps",
        "lr_scheduler_type": "type",
        "decay": "type",
        "min_lr_ratio": "final_fraction",
    }

    type: Literal["constant", "linear", "cosine"] = "cosine"

    warmup_steps: NonNegativeInt = 0
    """Steps until the peak."""

    final_fraction: float = Field(default=0.1, ge=0.0, le=1.0)
    """Share of the peak at the last step; unused by `constant`."""


class OptimizerConfig(FrozenConfig):
    """AdamW (Loshchilov & Hutter 2019)."""

    also_called: ClassVar = {
        "lr": "learning_rate",
        "wd": "weight_decay",
        "eps": "epsilon",
        "adam_epsilon": "epsilon",
        "beta1": "betas",
        "beta2": "betas",
        "max_grad_norm": "max_gradient_norm",
        "grad_clip": "max_gradient_norm",
        "gradient_clipping": "max_gradient_norm",
        "clip": "max_gradient_norm",
        "scheduler": "schedule",
        "lr_scheduler": "schedule",
    }

    learning_rate: PositiveFloat = 1e-4
    """Peak of the schedule."""

    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)

    epsilon: PositiveFloat = 1e-8

    weight_decay: NonNegativeFloat = 0.01
    """For matrices, never of vectors such as biases and norms."""

    max_gradient_norm: PositiveFloat | None = 1.0
    """Gradients are scaled down to this 2-norm; null: never."""

    schedule: ScheduleConfig = ScheduleConfig()


class WeightsConfig(FrozenConfig):
    """The types of the weights. The optimizer owns float32 weights, and commits hold them."""

    compute: Literal["float32", "bfloat16"] = "float32"
    """Type of the weights in forward and backward passes. `float32`: products are in bfloat16 according to
    `precision`. `bfloat16`: all of a pass is computed with a bfloat16 copy of the weights, which is faster on a GPU
    and rounds differently; weights are not sharded.
    """


class TrainerConfig(FrozenConfig):
    """Length, precision, and how often progress is committed."""

    also_called: ClassVar = {
        "num_epochs": "epochs",
        "num_train_epochs": "epochs",
        "max_epochs": "epochs",
        "steps": "max_steps",
        "num_steps": "max_steps",
        "total_steps": "max_steps",
        "iterations": "max_steps",
        "dtype": "precision",
        "bf16": "precision",
        "fp16": "precision",
        "save_steps": "commit_every",
        "save_every": "commit_every",
        "checkpoint_every": "commit_every",
        "eval_steps": "evaluate_every",
        "eval_every": "evaluate_every",
        "num_threads": "threads_per_rank",
        "torch_compile": "compile",
    }

    epochs: PositiveInt = 1

    max_steps: PositiveInt | None = None
    """Limit in optimizer steps."""

    optimizer: OptimizerConfig = OptimizerConfig()

    precision: Precision = "auto"
    """`auto`: `bfloat16` autocast on a GPU that supports it, else `float32`. Weights stay float32."""

    weights: WeightsConfig = WeightsConfig()
    """Left out of the record if it has its defaults."""

    compile: bool = False
    """Compile the layers with `torch.compile`. Changes the bits, equally at every world size."""

    gradient_sum: Literal["tree", "all_reduce"] = "tree"
    """`tree` gives the same bits at every world size; `all_reduce` is the backend's sum, for comparison."""

    commit_every: PositiveInt | Literal["auto"] = 100
    """Steps between commits: the most that a death can cost. `auto` weighs the cost of a commit against how often
    the run has died.
    """

    evaluate_every: PositiveInt | None = None
    """Steps between evaluations, each with a commit; null: only at the end."""

    spot_check_every: PositiveInt | None = 200
    """Steps between spot checks (docs/replay.md); rounded to coincide with commits. If a device computes wrongly,
    the run goes back to a checked commit. Null: none.
    """

    threads_per_rank: PositiveInt = 1
    """CPU threads of a rank. Another number gives other bits."""

    @model_validator(mode="after")
    def _choices_fit(self) -> "TrainerConfig":
        if self.weights.compute == "bfloat16" and self.precision == "float32":
            raise ValueError("precision=float32 contradicts weights.compute=bfloat16; leave one of them out")
        if self.weights.compute == "bfloat16" and self.gradient_sum != "tree":
            raise ValueError("weights.compute=bfloat16 needs gradient_sum=tree")
        return self

    @model_serializer(mode="wrap")
    def _as_recorded(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave `weights` out if it has its defaults, so that digests of recipes without it stay the same."""
        tree: dict[str, Any] = write(self)
        if self.weights == WeightsConfig():
            tree.pop("weights", None)
        return tree

    def num_steps(self, steps_per_epoch: int) -> int:
        """Return the number of optimizer steps of the whole run."""
        everything = self.epochs * steps_per_epoch
        return everything if self.max_steps is None else min(everything, self.max_steps)

    def is_spot_checked(self, step: int) -> bool:
        """Return whether step `step` is spot-checked: every `spot_check_every` steps, rounded to steps that commit."""
        check_interval, commit_every = self.spot_check_every, self.commit_every
        if check_interval is None:
            return False
        if commit_every == "auto":
            return step % check_interval == 0
        if commit_every < check_interval:
            return step % (commit_every * round(check_interval / commit_every)) == 0
        return step % check_interval == 0 or step % commit_every == 0
