"""The API's training methods and the recipe keys they map to."""

from typing import NamedTuple

from assay.records.dataset import Format


class ServedMethod(NamedTuple):
    """A value of the API's `method.type`."""

    name: str
    """The API's name."""
    recipe_type: str
    """`method.type` of the recipe."""
    format: Format
    """Dataset format of its training file."""
    hyperparameters: dict[str, str]
    """Hyperparameter -> recipe key that it sets, or multiplies for `learning_rate_multiplier`."""
    left_to_us: tuple[str, ...] = ()
    """Hyperparameters of the API that do not apply here: only `auto` is accepted."""
    accepts_grader: bool = False
    """Whether a job may bring a grader."""
    writes: bool = True
    """Whether its models generate text."""


_COMMON = {
    "n_epochs": "trainer.epochs",
    "batch_size": "loader.global_batch_size",
    "learning_rate_multiplier": "trainer.optimizer.learning_rate",
}

SERVED_METHODS = {
    method.name: method
    for method in (
        ServedMethod("classification", "classify", "labelled", _COMMON, writes=False),
        ServedMethod("supervised", "sft", "chat", _COMMON),
        ServedMethod("dpo", "dpo", "pairs", {**_COMMON, "beta": "method.loss.beta"}),
        ServedMethod(
            "reinforcement",
            "grpo",
            "prompts",
            {**_COMMON, "eval_interval": "trainer.evaluate_every"},
            left_to_us=("compute_multiplier", "eval_samples", "reasoning_effort"),
            accepts_grader=True,
        ),
        ServedMethod("reward_model", "reward", "pairs", _COMMON, writes=False),
    )
}
"""By name."""
WHOLE_NUMBERS = ("n_epochs", "batch_size", "eval_interval")
"""Integer hyperparameters."""
BETWEEN_MESSAGES = "\n\n"
"""Separator between the messages of a conversation that a classifier reads."""
DEFAULT_METHOD = "supervised"
"""Default `method.type`, as in the hosted API; a base model without it uses its first method."""
