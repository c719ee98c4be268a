"""From luck and logits to a token."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy.stats import kstest

from assay.inference.local.sampling import sample_tokens
from assay.inference.protocol import SamplingParams
from assay.inference.rollout import uniforms

LOGITS = arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=9), elements=st.floats(-30, 30, width=32))


def test_luck_is_even_and_differs_by_key_and_by_position():
    keys, positions = np.divmod(np.arange(40_000), 200)
    found = uniforms(keys.astype(np.uint64), positions)
    assert found.min() >= 0
    assert found.max() < 1
    assert kstest(found, "uniform").pvalue > 1e-3
    assert len(np.unique(found)) == len(found)


@given(logits=LOGITS, uniform_draws=st.floats(0, 1, exclude_max=True), top_k=st.none() | st.integers(1, 9))
def test_the_token_is_where_the_luck_falls_in_the_cumulative_probability(logits, uniform_draws, top_k):
    sampling = SamplingParams(temperature=0.5, top_k=top_k)
    tokens, logprobs = sample_tokens(
        torch.from_numpy(logits), sampling, torch.full((len(logits),), uniform_draws, dtype=torch.float64)
    )
    for row, token, logprob in zip(logits.astype(np.float64), tokens.tolist(), logprobs, strict=True):
        least = np.sort(row)[::-1][: top_k or None][-1]
        shares = np.where(row >= least, np.exp((row - row.max()) / 0.5), 0)
        shares /= shares.sum()
        assert shares[token] > 0
        assert abs(float(logprob) - np.log(shares[token])) < 1e-4
        assert shares[:token].sum() - 1e-5 <= uniform_draws <= shares[: token + 1].sum() + 1e-5


def test_the_last_bit_of_luck_does_not_reach_a_token_that_is_never_drawn():
    logits = torch.tensor([[0.0, 1.0, 2.0, -50.0, -50.0]])
    highest = torch.tensor([1 - 2.0**-52], dtype=torch.float64)
    assert sample_tokens(logits, SamplingParams(temperature=1.0, top_k=3), highest)[0].tolist() == [2]
    assert sample_tokens(logits, SamplingParams(temperature=1.0, top_p=0.99), highest)[0].tolist() == [2]


def test_without_temperature_there_is_no_choice():
    tokens, logprobs = sample_tokens(
        torch.tensor([[0.0, 3.0, 2.0]]), SamplingParams(), torch.tensor([0.99], dtype=torch.float64)
    )
    assert tokens.tolist() == [1]
    assert logprobs.tolist() == [0.0]


@given(temperature=st.sampled_from([5e-324, 1e-45, 1e-39, 1e-31, 1e-30, 1e-12]))
def test_a_temperature_near_zero_draws_the_likeliest_token(temperature):
    logits = torch.tensor([[1.0, 30.0, -30.0, 29.999], [0.0, -1.0, 7.5, 2.0]])
    tokens, logprobs = sample_tokens(
        logits, SamplingParams(temperature=temperature), torch.tensor([0.9, 0.1], dtype=torch.float64)
    )
    assert tokens.tolist() == [1, 2] and logprobs.tolist() == [0.0, 0.0]
