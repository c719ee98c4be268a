"""The count of parameters is that of the network which is trained."""

import pytest

from assay.models.config import NewEncoderConfig, PretrainedEncoderConfig
from assay.training.methods.classify.config import ClassifyConfig
from assay.training.methods.classify.network import ClassifierNetwork


@pytest.mark.parametrize("columns", [((), ()), (("source", "lang"), ("age",))])
def test_the_count_is_that_of_the_network(columns):
    encoder = NewEncoderConfig(
        vocab_size=50, hidden_size=12, num_layers=3, num_heads=2, intermediate_size=20, max_tokens=9
    )
    config = ClassifyConfig(encoder=encoder, categorical_columns=columns[0], numeric_columns=columns[1])
    assert config.num_parameters() == sum(weights.numel() for weights in ClassifierNetwork(config).parameters())


def test_a_pretrained_encoder_is_not_guessed_at():
    config = ClassifyConfig(encoder=PretrainedEncoderConfig(type="pretrained", path="x"))
    assert config.num_parameters() is None
