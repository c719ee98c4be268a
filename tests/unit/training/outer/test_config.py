"""What the configuration of outer steps takes and refuses."""

import pytest
from pydantic import ValidationError

from assay.training.outer.config import AverageConfig, NesterovConfig, OuterConfig


def test_averaging_at_four_bits_is_the_default() -> None:
    config = OuterConfig.model_validate({"every": 25})
    assert (config.optimizer, config.bits, config.clusters) == (AverageConfig(), 4, 2)


def test_nesterov_takes_a_rate_and_a_momentum() -> None:
    tree = {"every": 25, "optimizer": {"type": "nesterov", "rate": 0.8, "momentum": 0.5}}
    assert OuterConfig.model_validate(tree).optimizer == NesterovConfig(type="nesterov", rate=0.8, momentum=0.5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"every": 0},
        {"clusters": 0},
        {"bits": 5},
        {"deadline_s": 0.0},
        {"absent_after": 0},
        {"optimizer": {"type": "adam"}},
        {"optimizer": {"type": "average", "rate": 0.7}},
        {"optimizer": {"type": "nesterov", "rate": 0.7}},
        {"optimizer": {"type": "nesterov", "rate": 0.0, "momentum": 0.9}},
        {"optimizer": {"type": "nesterov", "rate": 0.7, "momentum": 1.0}},
        {"optimizer": {"type": "nesterov", "rate": 0.7, "momentum": -0.1}},
    ],
)
def test_wrong_values_are_refused(wrong) -> None:
    with pytest.raises(ValidationError) as refused:
        OuterConfig.model_validate({"every": 25, **wrong})
    assert {error["loc"][0] for error in refused.value.errors()} == set(wrong)
