"""The engine beside plain transformers, and beside itself in other company."""

import copy
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from assay.base.errors import ConfigError
from assay.data.dataset.tokens import train_tokenizer
from assay.inference.local.generator import _PROBE_LENGTHS, _PROBE_TOKENS, BatchInvariance, Generator
from assay.inference.local.memory import padded
from assay.inference.protocol import SamplingParams
from assay.inference.rollout import GenerationCancelledError, Prompt, Rollout
from shaped_networks import MAX_TOKENS, SHAPES, VOCAB_SIZE, shaped
from variants import slow

LENGTHS = (1, 2, 31, 32, 33, 40, 64, 65, 90, 7)
"""Of prompts: around multiples of the cache's width."""


@pytest.fixture(params=SHAPES)
def network(request: pytest.FixtureRequest) -> Any:
    return shaped(request.param)


@pytest.fixture
def llama() -> Any:
    return shaped("llama")


def prompts(*lengths: int, samples: int = 1) -> list[Prompt]:
    numbers = np.random.default_rng(5)
    words = [numbers.integers(0, VOCAB_SIZE, length) for length in lengths]
    return [Prompt(word, 1000 * index + sample) for index, word in enumerate(words) for sample in range(samples)]


def plain_logits(network: Any, prompt: Prompt, rollout: Rollout) -> np.ndarray:
    """Of each token of the completion, by one forward pass without a cache."""
    tokens = np.concatenate([prompt.tokens, rollout.tokens])
    with torch.no_grad():
        logits = network(input_ids=torch.from_numpy(tokens)[None], use_cache=False).logits[0]
    return logits[len(prompt.tokens) - 1 : -1].double().numpy()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def same(ours: Sequence[Rollout], reference: Sequence[Rollout]) -> bool:
    return all(
        np.array_equal(one.tokens, other.tokens)
        and one.logprobs.tobytes() == other.logprobs.tobytes()
        and one.reason == other.reason
        for one, other in zip(ours, reference, strict=True)
    )


def by_transformers(network: Any, prompt: Prompt, **keys: Any) -> list[int]:
    ids = torch.from_numpy(np.asarray(prompt.tokens))[None]
    found = network.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0, **keys)
    return found[0, len(prompt.tokens) :].tolist()


def test_the_likeliest_tokens_are_those_of_transformers_generate(network):
    requested = prompts(*LENGTHS * 2)
    rollouts = Generator(network, ends={5}, slots=16).generate(requested, SamplingParams(max_tokens=40))
    for prompt, rollout in [*zip(requested, rollouts, strict=True)][::2]:
        assert rollout.tokens.tolist() == by_transformers(network, prompt, max_new_tokens=40, eos_token_id=5)
        assert rollout.reason == ("stop" if rollout.tokens[-1] == 5 else "length")
    assert {rollout.reason for rollout in rollouts} == {"stop", "length"}


@pytest.mark.parametrize("temperature", [0.7, *slow(1.0, 2.0)])
def test_log_probs_are_those_of_an_uncached_forward_pass_at_the_temperature(network, temperature):
    requested = prompts(*LENGTHS, samples=2)
    sampling = SamplingParams(temperature=temperature, max_tokens=20)
    for prompt, rollout in zip(requested, Generator(network, ends={5}).generate(requested, sampling), strict=True):
        expected = log_softmax(plain_logits(network, prompt, rollout) / temperature)
        found = expected[np.arange(len(rollout.tokens)), rollout.tokens]
        np.testing.assert_allclose(rollout.logprobs, found, atol=2e-5)


def retained(logits: np.ndarray, top_k: int | None, top_p: float) -> set[int]:
    """Written down from the definition, one entry after another."""
    order = sorted(range(len(logits)), key=lambda entry: -logits[entry])[:top_k]
    shares = np.exp(logits[order] - logits[order].max())
    total, found = 0.0, set[int]()
    for entry, share in zip(order, shares / shares.sum(), strict=True):
        if total >= top_p:
            break
        total += share
        found.add(entry)
    return found


@pytest.mark.parametrize(("top_k", "top_p"), [(5, 1.0), (None, 0.6), (7, 0.8), (1, 1.0)])
def test_only_what_top_k_and_top_p_keep_is_drawn_and_its_log_prob_is_among_the_kept(llama, top_k, top_p):
    requested = prompts(3, 40, samples=20)
    sampling = SamplingParams(temperature=1.5, top_k=top_k, top_p=top_p, max_tokens=10)
    for prompt, rollout in zip(requested, Generator(llama, ends=()).generate(requested, sampling), strict=True):
        for logits, token, found in zip(
            plain_logits(llama, prompt, rollout) / 1.5, rollout.tokens, rollout.logprobs, strict=True
        ):
            entries = retained(logits, top_k, top_p)
            assert token in entries
            expected = logits[token] - np.log(np.exp(logits[sorted(entries)]).sum())
            assert found == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("temperature", [0.5, *slow(1.0)])
def test_first_tokens_are_drawn_as_often_as_the_softmax_says(llama, temperature):
    (prompt,), num_draws = prompts(12), 4000
    requested = [Prompt(prompt.tokens, key) for key in range(num_draws)]
    sampling = SamplingParams(temperature=temperature, max_tokens=1)
    rollouts = Generator(llama, ends=(), slots=128).generate(requested, sampling)
    sampled = np.bincount([rollout.tokens[0] for rollout in rollouts], minlength=VOCAB_SIZE)
    expected = np.exp(log_softmax(plain_logits(llama, prompt, rollouts[0]) / temperature)[0]) * num_draws
    rare = expected < 5
    of_rare = (sampled[rare].sum(), expected[rare].sum())
    assert chisquare([*sampled[~rare], of_rare[0]], [*expected[~rare], of_rare[1]]).pvalue > 1e-3


def test_a_second_token_does_not_follow_from_the_luck_of_the_first(llama):
    (prompt,) = prompts(12)
    requested = [Prompt(prompt.tokens, key) for key in range(2000)]
    sampling = SamplingParams(temperature=30.0, max_tokens=2)  # nearly even
    rollouts = Generator(llama, ends=(), slots=128).generate(requested, sampling)
    first, second = np.array([rollout.tokens for rollout in rollouts]).T
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.08


COMPANY = st.lists(st.tuples(st.sampled_from(LENGTHS), st.integers(1, 4)), min_size=1, max_size=12)


@lru_cache(maxsize=16)
def engine(shape: str, slots: int) -> Generator:
    return Generator(shaped(shape), ends={5, 6}, slots=slots)


def skip_unless_rows_are_independent(generator: Generator) -> None:
    is_seen = torch.backends.cpu.get_cpu_capability() == "AVX512"  # there they do not, or the engine is wrong
    if not generator.rows_are_independent and not is_seen:
        pytest.skip("this processor's kernels give a row other bits even in tiles of one size: groups decode alone")


def check_company(shape: str, batch_invariance: list[tuple[int, int]], slots: int, seed: int) -> None:
    """Rollouts of a company, in any order, are those of each by itself."""
    requested = [prompt for length, samples in batch_invariance for prompt in prompts(length, samples=samples)]
    order = np.random.default_rng(seed).permutation(len(requested)).tolist()
    sampling = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=24)
    skip_unless_rows_are_independent(engine(shape, slots))
    together = engine(shape, slots).generate([requested[index] for index in order], sampling)
    alone = engine(shape, 16)
    some = [*zip(order, together, strict=True)][:: -max(1, len(order) // 6)]  # the last ones move most
    for index, rollout in some:
        assert same([rollout], alone.generate([requested[index]], sampling))


@pytest.mark.parametrize("shape", ["qwen3", *slow("llama", "gpt2")])
@settings(max_examples=4, deadline=None)
@given(batch_invariance=COMPANY, slots=st.sampled_from([16, 32, 64]), seed=st.integers(0, 99))
def test_a_rollout_alone_is_the_rollout_in_any_company(shape, batch_invariance, slots, seed):
    check_company(shape, batch_invariance, slots, seed)


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(batch_invariance=COMPANY, slots=st.sampled_from([16, 64]), seed=st.integers(0, 99))
def test_so_it_is_with_adapters(batch_invariance, slots, seed):
    check_company("lora-llama", batch_invariance, slots, seed)


class Gossip(nn.Module):
    """A head whose logits know a little of who else is in the batch."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.head, self.weight = head, head.weight

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Not by much."""
        return self.head(states + 1e-3 * states.mean(dim=0, keepdim=True))


class KnowsItsNumber(nn.Module):
    """A head whose logits depend on how many rows there are, and a little on nothing else."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.head, self.weight = head, head.weight

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """As where kernels differ by the number of rows."""
        return self.head(states * (1 + 1e-2 * len(states)))


LONG, SHORT = 40, 7


def rows_decoded(network: Any) -> list[int]:
    """Rows of each forward pass over one token a row, from now on."""
    seen: list[int] = []

    def note(_: nn.Module, __: Any, inputs: dict[str, Any]) -> None:
        if inputs["input_ids"].shape[1] == 1:
            seen.append(inputs["input_ids"].shape[0])

    network.register_forward_pre_hook(note, with_kwargs=True)
    return seen


@pytest.mark.parametrize(
    ("for_short", "for_long"),
    [
        pytest.param(16, 16, id="a CPU: the smallest"),
        pytest.param(64, 32, id="as a GPU has room for short prompts and for long ones"),
    ],
)
def test_where_bits_depend_on_how_many_rows_there_are_tiles_have_one_size(llama, for_short, for_long, monkeypatch):
    counting = copy.deepcopy(llama)
    counting.lm_head = KnowsItsNumber(counting.lm_head)
    generator = Generator(counting, ends={5})
    assert generator.batch_invariance is BatchInvariance.FIXED_SIZE and generator.rows_are_independent
    if for_short > 16:
        room = {padded(SHORT - 1 + 12): for_short, padded(LONG - 1 + 12): for_long}
        monkeypatch.setattr(generator, "_size_for", lambda positions: room[padded(positions)])
        monkeypatch.setattr(Generator, "_prefilled_at_once", 4)
    seen = rows_decoded(counting)
    requested = prompts(SHORT, LONG, 33, SHORT, samples=5)
    sampling = SamplingParams(temperature=1.0, max_tokens=12)
    assert {rows for rows, _ in rows_prefilled(counting, lambda: generator.generate(requested, sampling))} == {
        1 if for_short == 16 else 4
    }
    together = generator.generate(requested, sampling)
    assert set(seen) == {for_short, for_long}
    for index in (0, 7, 12, 19):
        assert same([together[index]], generator.generate([requested[index]], sampling))
    again = generator.generate(requested[::-1], sampling)[::-1]
    assert same(together, again), "in whatever order"


def test_on_a_gpu_a_prompts_length_says_how_many_rows_its_tile_has(llama, monkeypatch):
    generator = Generator(llama, ends=())
    assert {generator._size_for(positions) for positions in (1, 100, 10_000)} == {16}
    monkeypatch.setattr(Generator, "_device", torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=80 << 30))
    of_tried = generator._affordable_slots(max(_PROBE_LENGTHS) - 1 + _PROBE_TOKENS)
    sizes = [generator._size_for(positions) for positions in (1, 10_000_000)]
    assert sizes == [of_tried, 16] and of_tried == 256


class RunObserver:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.sampled: dict[int, list[int]] = {}
        self.whole: dict[int, Rollout] = {}

    def drew(self, prompts: np.ndarray, logits: torch.Tensor, tokens: torch.Tensor) -> None:
        """Tokens of rows that are somebody's."""
        assert len(prompts) == len(logits)
        for prompt, token in zip(prompts.tolist(), tokens.tolist(), strict=True):
            if prompt >= 0:
                self.sampled.setdefault(prompt, []).append(token)

    def ended(self, prompt: int, rollout: Rollout) -> None:
        """Once a prompt."""
        assert prompt not in self.whole
        self.whole[prompt] = rollout


@pytest.mark.parametrize("batch_invariance", BatchInvariance)
def test_who_watches_is_told_of_prompts_by_their_own_numbers(llama, batch_invariance, monkeypatch):
    generator, observer = Generator(llama, ends={5}), RunObserver()
    generator._batch_invariance[torch.float32] = batch_invariance
    longest = padded(LONG - 1 + 6)
    monkeypatch.setattr(generator, "_size_for", lambda at: 16 if padded(at) == longest else 32)
    requested = prompts(SHORT, LONG, SHORT, samples=2)
    found = generator.generate(requested, SamplingParams(temperature=1.0, max_tokens=6), observer=observer)
    assert [observer.sampled[index] for index in range(6)] == [rollout.tokens.tolist() for rollout in found]
    assert all(same([observer.whole[index]], [rollout]) for index, rollout in enumerate(found))


def test_where_rows_know_of_each_other_a_group_decodes_alone(llama):
    gossiping = copy.deepcopy(llama)
    gossiping.lm_head = Gossip(gossiping.lm_head)
    requested = prompts(7, 33, 40, samples=3)
    sampling = SamplingParams(temperature=1.0, max_tokens=12)
    generator = Generator(gossiping, ends={5})
    assert generator.batch_invariance is BatchInvariance.GROUP_ONLY and not generator.rows_are_independent
    together = generator.generate(requested, sampling)
    for begin in (0, 3, 6):
        assert same(together[begin : begin + 3], generator.generate(requested[begin : begin + 3], sampling))


def rows_prefilled(network: Any, request: Callable[[], object]) -> list[tuple[int, int]]:
    """(rows, tokens) of each forward pass over more than one token a row."""
    seen: list[tuple[int, int]] = []

    def note(_: nn.Module, __: Any, inputs: dict[str, Any]) -> None:
        if inputs["input_ids"].shape[1] > 1:
            seen.append(tuple(inputs["input_ids"].shape))

    with_hook = network.base_model.register_forward_pre_hook(note, with_kwargs=True)
    request()
    with_hook.remove()
    return seen


def test_a_group_is_prefilled_once_and_prompts_of_one_padded_length_together(llama):
    generator, sampling = Generator(llama, ends=(), slots=16), SamplingParams(temperature=1.0, max_tokens=3)
    skip_unless_rows_are_independent(generator)
    requested = prompts(20, 30, 50, 60, 10, samples=8)
    assert rows_prefilled(llama, lambda: generator.generate(requested, sampling)) == [(3, 32), (2, 64)]


def test_a_generation_says_what_it_took_and_how_full_the_tile_was(llama):
    generator = Generator(llama, ends=(), slots=16)
    skip_unless_rows_are_independent(generator)
    generator.generate(prompts(20, 9, samples=12), SamplingParams(temperature=1.0, max_tokens=5))
    cost = generator.cost
    assert (cost.num_tokens, cost.num_rows) == (24 * 5, 16 * 10), "16 slots, five steps each for 16 and for 8 prompts"
    assert cost.prefill_s > 0 and cost.decode_s > 0
    assert cost.metrics()["slot_occupancy"] == 0.75
    generator.generate(prompts(20), SamplingParams(temperature=1.0, max_tokens=5))
    assert generator.cost.num_tokens == 5, "of the last one"


def test_samples_of_a_prompt_differ_and_a_key_repeats_one(llama):
    requested = prompts(20, samples=8)
    generator, sampling = Generator(llama, ends=()), SamplingParams(temperature=1.0, max_tokens=12)
    rollouts = generator.generate(requested, sampling)
    assert len({tuple(rollout.tokens) for rollout in rollouts}) == 8
    assert same(rollouts, generator.generate(requested, sampling))
    skip_unless_rows_are_independent(generator)
    assert same(rollouts[3:4], generator.generate(requested[3:4], sampling))


def test_the_weights_of_the_moment_are_asked(llama):
    network = copy.deepcopy(llama)
    generator, requested = Generator(network, ends=()), prompts(20, 9)
    before = generator.generate(requested, SamplingParams(max_tokens=12))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(-0.5)
    after = generator.generate(requested, SamplingParams(max_tokens=12))
    assert not same(before, after)
    assert same(after, Generator(network, ends=()).generate(requested, SamplingParams(max_tokens=12)))


def test_a_network_in_training_is_left_in_training_and_drops_nothing_out(llama):
    network = copy.deepcopy(llama).train()
    for layer in network.base_model.layers:
        layer.self_attn.attention_dropout = 0.5
    requested, sampling = prompts(20, 9), SamplingParams(temperature=1.0, max_tokens=12)
    assert same(
        Generator(network, ends=()).generate(requested, sampling),
        Generator(llama, ends=()).generate(requested, sampling),
    )
    assert network.training
    assert all(parameter.grad is None for parameter in network.parameters())


@pytest.mark.parametrize("architecture", ["mistral", "qwen2"])
def test_a_model_that_looks_back_on_a_window_sees_no_more(architecture):
    torch.manual_seed(3)
    sizes = {
        "vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 64, "max_position_embeddings": MAX_TOKENS,
        "sliding_window": 20, "bos_token_id": None, "eos_token_id": None, "initializer_range": 0.25,
    }  # fmt: skip
    if architecture == "qwen2":
        sizes |= {"use_sliding_window": True, "max_window_layers": 1}
    config = AutoConfig.for_model(architecture, **sizes)
    network = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    requested, sampling = prompts(50, 10, 33), SamplingParams(temperature=1.0, max_tokens=40)
    for prompt, rollout in zip(requested, Generator(network, ends=()).generate(requested, sampling), strict=True):
        expected = log_softmax(plain_logits(network, prompt, rollout))
        found = expected[np.arange(len(rollout.tokens)), rollout.tokens]
        np.testing.assert_allclose(rollout.logprobs, found, atol=2e-5)


def test_a_completion_ends_with_the_token_that_completes_a_stop_string(llama):
    tokenizer = train_tokenizer(["ab ba " * 9], vocab_size=300)
    network = copy.deepcopy(llama)
    network.resize_token_embeddings(tokenizer.get_vocab_size(), mean_resizing=False)
    torch.manual_seed(0)
    nn.init.normal_(network.get_input_embeddings().weight, std=0.3)
    nn.init.normal_(network.get_output_embeddings().weight, std=0.3)
    generator = Generator(network, ends=(), tokenizer=tokenizer)
    requested, whole = prompts(9, 4, samples=8), SamplingParams(temperature=1.0, max_tokens=60)
    texts = [tokenizer.decode(item.tokens.tolist()) for item in generator.generate(requested, whole)]
    stop = texts[0][30:33]
    stopped = generator.generate(requested, whole.model_copy(update={"stop": (stop, "ab")}))
    assert stopped[0].reason == "stop"
    for text, rollout in zip(texts, stopped, strict=True):
        found = tokenizer.decode(rollout.tokens.tolist())
        if rollout.reason == "stop":
            assert (stop in found or "ab" in found) and text.startswith(found[:-4])
            before = tokenizer.decode(rollout.tokens[:-1].tolist())
            assert stop not in before and "ab" not in before
        else:
            assert found == text and stop not in text and "ab" not in text


def test_stop_strings_without_a_tokenizer_are_refused(llama):
    with pytest.raises(ConfigError, match="tokenizer that spells"):
        Generator(llama, ends=()).generate(prompts(3), SamplingParams(max_tokens=4, stop=("x",)))


@pytest.mark.parametrize("length", [0, MAX_TOKENS - 3])
def test_a_prompt_that_leaves_no_room_is_refused_before_anything_is_sampled(llama, length):
    requested = [*prompts(4), Prompt(np.zeros(length, np.int64), 0)]
    with pytest.raises(ConfigError, match=f"prompt 1 has {length} tokens"):
        Generator(llama, ends=()).generate(requested, SamplingParams(max_tokens=4))
    assert len(Generator(llama, ends=()).generate(prompts(MAX_TOKENS - 4), SamplingParams(max_tokens=4))[0].tokens) == 4


def test_nothing_asked_is_nothing_sampled(llama):
    assert Generator(llama, ends=()).generate([], SamplingParams(max_tokens=4)) == []


@pytest.mark.parametrize("together", [True, False])
def test_who_is_asked_to_stop_draws_no_further_token(
    together: bool, llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator, sampled = Generator(llama, ends=()), []
    generator._batch_invariance[torch.float32] = BatchInvariance.ANY_SIZE if together else BatchInvariance.GROUP_ONLY
    step = generator._step
    monkeypatch.setattr(generator, "_step", lambda *inputs: sampled.append(1) or step(*inputs))
    sampling = SamplingParams(temperature=1.0, max_tokens=12)
    with pytest.raises(GenerationCancelledError):
        generator.generate(prompts(5, 9, samples=20), sampling, lambda: len(sampled) == 3)
    assert len(sampled) == 3
    assert len(generator.generate(prompts(5), sampling)) == 1, "and can be asked again"
