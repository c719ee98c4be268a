"""The network beside a version of it in loops and NumPy, and what must not change its outputs."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.models.config import NewEncoderConfig
from assay.training.methods.classify.config import ClassifyConfig
from assay.training.methods.classify.label_config import BinaryLabel
from assay.training.methods.classify.labels import BinaryTargets
from assay.training.methods.classify.network import ClassifierNetwork

VOCABULARY, WIDTH = 30, 8
CATEGORY_BUCKETS = 5
CONFIG = ClassifyConfig(
    encoder=NewEncoderConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_layers=2, num_heads=2, intermediate_size=16,
        max_tokens=16, dropout=0.0,
    ),
    categorical_columns=("language",),
    numeric_columns=("turns",),
    category_buckets=CATEGORY_BUCKETS,
    head_dropout=0.0,
)  # fmt: skip
Row = tuple[list[int], tuple[int, int]]
rows = st.tuples(
    st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=7),
    st.tuples(st.integers(0, CATEGORY_BUCKETS), st.integers(0, 128)),
)


@pytest.fixture(scope="module")
def network() -> ClassifierNetwork:
    torch.manual_seed(0)
    network = ClassifierNetwork(CONFIG).double().eval()
    for embedding in network.metadata:
        torch.nn.init.normal_(embedding.weight)  # as large as what the tokens say
    return network


def logits(network: ClassifierNetwork, batch: list[Row], *, padding: int = 0, filler: int = 0) -> np.ndarray:
    """Of padded rows, as `classifier_tensors` would hand them over; float32, as the network says them."""
    width = max(len(tokens) for tokens, _ in batch) + padding
    ids = torch.full((len(batch), width), filler)
    mask = torch.zeros(len(batch), width, dtype=torch.bool)
    for index, (tokens, _) in enumerate(batch):
        ids[index, : len(tokens)] = torch.tensor(tokens)
        mask[index, : len(tokens)] = True
    lengths, buckets = mask.sum(dim=1), torch.tensor([buckets for _, buckets in batch])
    with torch.no_grad():
        return network(ids, lengths, buckets, None if mask.all() else mask).numpy()


def logit_of_one(network: ClassifierNetwork, row: Row) -> float:
    """Mean of the tokens' states, plus an embedding for each metadata value, through the head; in loops."""
    tokens, buckets = row
    with torch.no_grad():
        states = network.encoder(input_ids=torch.tensor([tokens])).last_hidden_state[0].numpy()
    weights = {name: tensor.detach().numpy() for name, tensor in network.named_parameters()}
    pooled = [sum(states[index][unit] for index in range(len(tokens))) / len(tokens) for unit in range(WIDTH)]
    for column, bucket in enumerate(buckets):
        table = weights[f"metadata.{column}.weight"]
        pooled = [value + table[bucket][unit] for unit, value in enumerate(pooled)]
    hidden = [
        sum(weights["head.0.weight"][unit][k] * pooled[k] for k in range(WIDTH)) + weights["head.0.bias"][unit]
        for unit in range(WIDTH)
    ]
    # GELU: x times the probability that a standard normal number is below x.
    hidden = [value * (1 + math.erf(value / math.sqrt(2))) / 2 for value in hidden]
    return sum(weights["head.3.weight"][0][k] * hidden[k] for k in range(WIDTH)) + weights["head.3.bias"][0]


@settings(deadline=None, max_examples=25)
@given(batch=st.lists(rows, min_size=1, max_size=5))
def test_a_batch_says_what_loops_over_its_rows_say(network, batch) -> None:
    expected = [logit_of_one(network, row) for row in batch]
    np.testing.assert_allclose(logits(network, batch), expected, rtol=1e-5, atol=1e-6)


@settings(deadline=None, max_examples=25)
@given(batch=st.lists(rows, min_size=1, max_size=4), padding=st.integers(1, 6), filler=st.integers(0, 29))
def test_padding_says_nothing_however_much_and_whatever_it_holds(network, batch, padding, filler) -> None:
    padded = logits(network, batch, padding=padding, filler=filler)
    np.testing.assert_allclose(padded, logits(network, batch), rtol=1e-5, atol=1e-6)


@settings(deadline=None, max_examples=25)
@given(batch=st.lists(rows, min_size=2, max_size=5), data=st.data())
def test_rows_do_not_see_one_another(network, batch, data) -> None:
    order = data.draw(st.permutations(range(len(batch))))
    shuffled = logits(network, [batch[index] for index in order])
    np.testing.assert_allclose(shuffled, logits(network, batch)[order], rtol=1e-5, atol=1e-6)


@settings(deadline=None, max_examples=25)
@given(batch=st.lists(rows, min_size=1, max_size=4), data=st.data())
def test_another_metadata_value_changes_the_logit_of_its_row_and_no_other(network, batch, data) -> None:
    row, column = data.draw(st.integers(0, len(batch) - 1)), data.draw(st.integers(0, 1))
    tokens, buckets = batch[row]
    size = (CATEGORY_BUCKETS + 1, 129)[column]
    other = data.draw(st.integers(0, size - 1).filter(lambda bucket: bucket != buckets[column]))
    changed = list(batch)
    changed[row] = (tokens, (other, buckets[1]) if column == 0 else (buckets[0], other))
    moved = np.abs(logits(network, changed) - logits(network, batch)) > 1e-6
    assert np.flatnonzero(moved).tolist() == [row]


@settings(deadline=None, max_examples=50)
@given(rows=st.lists(st.tuples(st.floats(-30, 30, width=32), st.integers(0, 1)), min_size=1, max_size=8))
def test_the_loss_is_the_sum_of_each_rows_surprise_in_nats(rows) -> None:
    def surprise(logit: float, label: int) -> float:
        return math.log1p(math.exp(-logit)) if label else math.log1p(math.exp(logit))

    input_logits = torch.tensor([logit for logit, _ in rows])
    labels = torch.tensor([float(label) for _, label in rows])
    total = BinaryTargets(BinaryLabel()).loss(input_logits, labels).sum
    # A surprise near zero is the difference of numbers as large as the logit, in float32.
    assert float(total) == pytest.approx(sum(surprise(*row) for row in rows), rel=1e-5, abs=5e-5)
