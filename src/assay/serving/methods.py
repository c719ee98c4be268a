"""The training methods that the API has, and how each is said in a recipe: the one table that joins the two."""

from typing import NamedTuple

from assay.records.dataset import Format


class ServedMethod(NamedTuple):
    """One value of `method.type`."""

    name: str
    """The API's word."""
    recipe_type: str
    """That of a recipe's `method.type`."""
    format: Format
    """What rows of its training file become."""
    hyperparameters: dict[str, str]
    """Each one's name -> the key of the recipe that it sets; `learning_rate_multiplier` multiplies it."""
    left_to_us: tuple[str, ...] = ()
    """Hyperparameters that the API has and the method has not: `auto` may be said, a value is refused."""
    takes_grader: bool = False
    """Whether a job says what pays answers."""
    writes: bool = True
    """Whether its models write texts."""


_COMMON = {
    "n_epochs": "trainer.epochs",
    "batch_size": "loader.global_batch_size",
    "learning_rate_multiplier": "trainer.optimizer.learning_rate",
}

SERVED_METHODS = {
    each.name: each
    for each in (
        ServedMethod("classification", "classify", "labelled", _COMMON, writes=False),
        ServedMethod("supervised", "sft", "chat", _COMMON),
        ServedMethod("dpo", "dpo", "pairs", {**_COMMON, "beta": "method.loss.beta"}),
        ServedMethod(
            "reinforcement",
            "grpo",
            "prompts",
            {**_COMMON, "eval_interval": "trainer.evaluate_every"},
            left_to_us=("compute_multiplier", "eval_samples", "reasoning_effort"),
            takes_grader=True,
        ),
        ServedMethod("reward_model", "reward", "pairs", _COMMON, writes=False),
    )
}
"""By name."""
WHOLE_NUMBERS = ("n_epochs", "batch_size", "eval_interval")
"""Hyperparameters that are counted."""
BETWEEN_MESSAGES = "\n\n"
"""What stands between the messages of a conversation that a classifier reads."""
DEFAULT_METHOD = "supervised"
"""The method of a job that names none, as the hosted API has it; a base model without it takes its first."""
