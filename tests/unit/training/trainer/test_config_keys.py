"""What the trainer's configuration takes and refuses, and the names that people bring along for its keys."""

import inspect
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from assay.base.config import FrozenConfig
from assay.training.trainer.config import OptimizerConfig, ScheduleConfig, TrainerConfig, WeightsConfig

TINY = 1e-9

ALMOST_1 = 1 - TINY
BOUNDS: list[tuple[type[FrozenConfig], str, list[Any], list[Any]]] = [
    # class, key, the last values that are taken, the first that are not
    (ScheduleConfig, "type", ["constant", "linear", "cosine"], ["polynomial"]),
    (ScheduleConfig, "warmup_steps", [0, 1], [-1, 0.5]),
    (ScheduleConfig, "final_fraction", [0.0, 1.0], [-TINY, 1 + TINY]),
    (OptimizerConfig, "learning_rate", [TINY, 2.0], [0.0, -TINY]),
    (OptimizerConfig, "betas", [(0.0, 0.0), (ALMOST_1, ALMOST_1)], [(1, 0), (0, 1), (-TINY, 0), (0, -TINY)]),
    (OptimizerConfig, "epsilon", [TINY], [0.0, -TINY]),
    (OptimizerConfig, "weight_decay", [0.0, 2.0], [-TINY]),
    (OptimizerConfig, "max_gradient_norm", [None, TINY], [0.0, -TINY]),
    (WeightsConfig, "compute", ["float32", "bfloat16"], ["float16", "auto"]),
    (TrainerConfig, "epochs", [1], [0, -1]),
    (TrainerConfig, "max_steps", [None, 1], [0]),
    (TrainerConfig, "precision", ["auto", "float32", "bfloat16"], ["float16"]),
    (TrainerConfig, "gradient_sum", ["tree", "all_reduce"], ["ring"]),
    (TrainerConfig, "commit_every", [1, "auto"], [0, "never", None]),
    (TrainerConfig, "evaluate_every", [None, 1], [0, "auto"]),
    (TrainerConfig, "spot_check_every", [None, 1], [0, "auto"]),
    (TrainerConfig, "threads_per_rank", [1], [0]),
    (TrainerConfig, "compile", [False, True], ["layers", None]),
]  # fmt: skip


@pytest.mark.parametrize(("config", "key", "used", "refused"), BOUNDS, ids=lambda item: getattr(item, "__name__", ""))
def test_a_value_is_taken_up_to_its_bounds_and_refused_beyond(config, key, used, refused) -> None:
    for value in used:
        assert getattr(config.model_validate({key: value}), key) == value
    for value in refused:
        with pytest.raises(ValidationError, match=key):
            config.model_validate({key: value})


def test_every_key_has_its_bounds_here() -> None:
    sections = {(TrainerConfig, "optimizer"), (OptimizerConfig, "schedule"), (TrainerConfig, "weights")}
    configs = (ScheduleConfig, OptimizerConfig, WeightsConfig, TrainerConfig)
    keys = {(config, key) for config in configs for key in config.model_fields}
    assert {(config, key) for config, key, *_ in BOUNDS} == keys - sections


DEFAULTS: dict[type[FrozenConfig], dict[str, Any]] = {
    ScheduleConfig: {"type": "cosine", "warmup_steps": 0, "final_fraction": 0.1},
    OptimizerConfig: {
        "learning_rate": 0.0001, "betas": (0.9, 0.999), "epsilon": 1e-08, "weight_decay": 0.01,
        "max_gradient_norm": 1.0, "schedule": ScheduleConfig(),
    },
    TrainerConfig: {
        "epochs": 1, "max_steps": None, "optimizer": OptimizerConfig(), "precision": "auto", "compile": False,
        "gradient_sum": "tree", "commit_every": 100, "evaluate_every": None, "spot_check_every": 200,
        "threads_per_rank": 1, "weights": WeightsConfig(),
    },
    WeightsConfig: {"compute": "float32"},
}  # fmt: skip
"""What every recipe that leaves a key out has meant so far, and must go on meaning."""


@pytest.mark.parametrize("config", DEFAULTS, ids=lambda item: item.__name__)
def test_a_key_that_is_left_out_means_what_it_always_meant(config: type[FrozenConfig]) -> None:
    assert dict(config()) == DEFAULTS[config]


def test_weights_are_recorded_only_if_a_recipe_chooses_them() -> None:
    assert "weights" not in TrainerConfig().model_dump(mode="json")
    chosen = TrainerConfig.model_validate({"weights": {"compute": "bfloat16"}})
    assert chosen.model_dump(mode="json")["weights"] == {"compute": "bfloat16"}
    assert TrainerConfig.model_validate(chosen.model_dump(mode="json")) == chosen
    with pytest.raises(ValidationError, match=r"precision=float32 contradicts weights\.compute=bfloat16"):
        TrainerConfig.model_validate({"weights": {"compute": "bfloat16"}, "precision": "float32"})
    with pytest.raises(ValidationError, match=r"weights\.compute=bfloat16 needs gradient_sum=tree"):
        TrainerConfig.model_validate({"weights": {"compute": "bfloat16"}, "gradient_sum": "all_reduce"})


def test_adamw_is_by_default_as_pytorch_has_it() -> None:
    standard = inspect.signature(torch.optim.AdamW).parameters
    ours = OptimizerConfig()
    assert ours.betas == standard["betas"].default
    assert (ours.epsilon, ours.weight_decay) == (standard["eps"].default, standard["weight_decay"].default)


NAMES: dict[type[FrozenConfig], dict[str, str]] = {
    ScheduleConfig: {
        "warmup_steps": "warmup num_warmup_steps",
        "type": "lr_scheduler_type decay",
        "final_fraction": "min_lr_ratio",
    },
    OptimizerConfig: {
        "learning_rate": "lr",
        "weight_decay": "wd",
        "epsilon": "eps adam_epsilon",
        "betas": "beta1 beta2",
        "max_gradient_norm": "max_grad_norm grad_clip gradient_clipping clip",
        "schedule": "scheduler lr_scheduler",
    },
    TrainerConfig: {
        "epochs": "num_epochs num_train_epochs max_epochs",
        "max_steps": "steps num_steps total_steps iterations",
        "precision": "dtype bf16 fp16",
        "commit_every": "save_steps save_every checkpoint_every",
        "evaluate_every": "eval_steps eval_every",
        "threads_per_rank": "num_threads",
        "compile": "torch_compile",
    },
}
"""Key -> what torch.optim, transformers (`TrainingArguments`, its schedules), TRL, Lightning, DeepSpeed,
Megatron and nanoGPT call it."""


@pytest.mark.parametrize("config", NAMES, ids=lambda item: item.__name__)
def test_a_key_is_known_by_the_names_that_other_tools_have_for_it(config: type[FrozenConfig]) -> None:
    found: dict[str, set[str]] = {}
    for name, key in config.also_called.items():
        found.setdefault(key, set()).add(name)
    assert found == {key: set(names.split()) for key, names in NAMES[config].items()}
