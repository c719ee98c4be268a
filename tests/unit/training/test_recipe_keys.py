"""Wrong keys of a recipe: what people bring along from other tools, and slips."""

import pytest
from pydantic import BaseModel

from assay.base.config import FrozenConfig, LoadedConfig, set_dotted, validated
from assay.base.errors import ConfigError
from assay.base.model_fields import nested_models
from assay.training.recipe import Recipe
from tiny_recipe import tiny_recipe


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("trainer.lr", "trainer.optimizer.learning_rate"),
        ("lr", "trainer.optimizer.learning_rate"),
        ("learning_rate", "trainer.optimizer.learning_rate"),
        ("trainer.optimizer.lerning_rate", "trainer.optimizer.learning_rate"),
        ("trainer.wd", "trainer.optimizer.weight_decay"),
        ("trainer.optimizer.warmup", "trainer.optimizer.schedule.warmup_steps"),
        ("trainer.warmup_steps", "trainer.optimizer.schedule.warmup_steps"),
        ("trainer.batch_size", "loader.global_batch_size"),
        ("loader.batch-size", "loader.global_batch_size"),
        ("epochs", "trainer.epochs"),
        ("trainer.num_epochs", "trainer.epochs"),
        ("trainer.optimizer.epochs", "trainer.epochs"),
        ("optimizer", "trainer.optimizer"),
        ("trainer.max_grad_norm", "trainer.optimizer.max_gradient_norm"),
        ("trainer.eval_steps", "trainer.evaluate_every"),
        ("trainer.save_steps", "trainer.commit_every"),
        ("method.hidden_size", "method.encoder.hidden_size"),
        ("method.encoder.heads", "method.encoder.num_heads"),
        ("method.max_length", "method.encoder.max_tokens"),
        ("data.test_size", "data.split.validation_fraction"),
        ("loader.lane", "loader.lanes"),
        ("seeed", "seed"),
    ],
)
def test_a_wrong_key_is_answered_with_the_one_that_was_meant(wrong: str, meant: str) -> None:
    tree = tiny_recipe()
    set_dotted(tree, wrong, 1, where="in the file")
    with pytest.raises(ConfigError) as raised:
        validated(Recipe, LoadedConfig(tree, {wrong: "override"}))
    assert f"{wrong} (override): no such key. Perhaps you meant '{meant}'." in str(raised.value)


def test_what_a_field_is_also_called_names_a_field_and_is_none() -> None:
    models: list[type[BaseModel]] = [Recipe, *nested_models([Recipe])]
    for model in models:
        assert issubclass(model, FrozenConfig)
        assert set(model.also_called.values()) <= set(model.model_fields), model
        assert not set(model.also_called) & set(model.model_fields), model
