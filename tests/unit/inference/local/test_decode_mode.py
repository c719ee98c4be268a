"""Steps as on a GPU, run on a CPU: the same rollouts, no wait for the device, and pages that come back."""

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.base.errors import ConfigError
from assay.inference.local.captured_step import CapturedStep
from assay.inference.local.decode_batch import DecodeTile, PromptQueue
from assay.inference.local.generator import ON_GPU, DecodeMode, Generator
from assay.inference.local.memory import check_room, tile_bytes
from assay.inference.local.paged_cache import PagedCache, PagePool
from assay.inference.local.stop_tokens import Ends
from assay.inference.protocol import SamplingParams
from assay.inference.rollout import Prompt, uniforms
from assay.models.graph_capture import NotCapturedError
from assay.models.kernels.paged_attention import paged_attention
from golden.test_rollouts import CASES, ENDS, FILE, network_of, prompts_of, rollouts_of, tokenizer, written
from no_host_waits import HostWaitsError, NoHostWaits
from shaped_networks import VOCAB_SIZE, shaped
from variants import slow

CPU = torch.device("cpu")
EVERY_STEP = DecodeMode(steps_per_look=1, looks_lag=True, page_size=64, is_captured=True)
WITH_COMPANY = [name for name, case in CASES.items() if case.lengths != (7, 33)]
QUICK = (
    "llama, four slots' worth of groups",
    "llama, top_k and top_p",
    "stop strings",
    "a tile of one size",
)
"""Cases of `make test`; the others are slow."""


def test_draws_on_the_device_are_the_uniforms_of_keys_and_positions() -> None:
    keys = [0, 1, 2**63, 2**64 - 1, -5]
    requested = [Prompt(np.arange(9), key) for key in keys]
    generator, tile = tile_of(shaped("llama"), requested, 6)
    params = SamplingParams(temperature=1.0, max_tokens=6)
    with torch.no_grad():
        for position in range(5):
            expected = uniforms(np.array([key % 2**64 for key in keys], np.uint64), np.full(5, position))
            is_over = tile._done[:5].numpy()
            assert np.array_equal(tile.draws[:5].numpy()[~is_over], expected[~is_over])
            generator._step(tile, params)
            tile.stepped()


@pytest.mark.parametrize("mode", [pytest.param(ON_GPU, id="k=8"), *slow(EVERY_STEP)])
@pytest.mark.parametrize("name", [*QUICK, *slow(*(name for name in WITH_COMPANY if name not in QUICK))])
def test_rollouts_of_a_gpus_mode_are_those_of_a_cpu(name: str, mode: DecodeMode) -> None:
    case = CASES[name]
    generator = Generator(
        network_of(case.shape),
        ends=ENDS if case.shape != "talker" else (),
        tokenizer=tokenizer(),
        slots=case.slots,
        mode=mode,
    )
    if case.batch_invariance is not None:
        generator._batch_invariance[torch.float32] = case.batch_invariance
    if not generator.rows_are_independent:
        pytest.skip("this processor's kernels give rows other bits in other tiles")
    assert written(generator.generate(prompts_of(case), case.params)) == written(rollouts_of(case))


def tile_of(network: Any, prompts: list[Prompt], max_tokens: int, **options: Any) -> tuple[Generator, DecodeTile]:
    """A tile with the prompts admitted, in pages of 64."""
    generator = Generator(network, ends=ENDS, slots=16, mode=EVERY_STEP._replace(**options))
    params = SamplingParams(temperature=1.0, max_tokens=max_tokens)
    ends = generator._ends_of(params)
    with torch.no_grad():
        tile = generator._tile(prompts, params, ends, None, is_observed=False)
        waiting = PromptQueue(prompts, generator._prefixes, at_once=16)
        tile.admit(waiting.next(tile.free()), prompts, waiting)
    return generator, tile


@pytest.mark.parametrize("shape", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize("page_size", [64, None])
def test_no_operator_of_a_step_makes_the_host_wait(shape: str, page_size: int | None) -> None:
    words = np.arange(90) % VOCAB_SIZE
    requested = [Prompt(words[:length], length) for length in (70, 70, 3, 90)]
    generator, tile = tile_of(shaped(shape), requested, 20, page_size=page_size)
    params = SamplingParams(temperature=0.7, max_tokens=20)
    network = shaped(shape).eval()
    with torch.no_grad(), NoHostWaits():
        for _ in range(3):
            generator._step(tile, params)
            tile.stepped()
    assert tile.count[:4].tolist() == [3] * 4 or network.training
    filtered = params.model_copy(update={"top_k": 5, "top_p": 0.9})
    with torch.no_grad(), NoHostWaits():
        generator._step(tile, filtered)
    with torch.no_grad(), NoHostWaits(), pytest.raises(HostWaitsError):
        int(tile.count.max())


def test_the_first_step_of_a_size_is_plain_the_second_captured_and_others_replayed() -> None:
    events: list[str] = []

    def capture(compute: Callable[[], object]) -> Callable[[], object]:
        compute()
        return lambda: events.append("replay")

    step = CapturedStep(lambda: events.append("step"), capture)
    for rows in (16, 16, 16, 64, 16, 64, 64):
        step.run(rows)
    assert events == ["step", "step", "replay", "step", "replay", "step", "replay"]


def test_steps_that_cannot_be_captured_are_plain_and_the_reason_is_told_once() -> None:
    events: list[str] = []

    def refuse(compute: Callable[[], object]) -> Callable[[], object]:
        compute()
        raise NotCapturedError("the host waits for a value of the GPU")

    step = CapturedStep(lambda: events.append("step"), refuse)
    with pytest.warns(RuntimeWarning, match="not captured as CUDA graphs: the host waits") as caught:
        for rows in (16, 16, 16, 64, 64, 64):
            step.run(rows)
    assert events == ["step"] * 6 and len(caught) == 1


def test_a_page_is_free_when_its_last_user_has_returned_it() -> None:
    pool = PagePool(range(4, 10))
    shared, own = pool.take(2), pool.take(4)
    pool.share(shared)
    pool.give_back([*shared, *own])
    assert pool.num_free == 4
    pool.give_back(shared)
    assert pool.num_free == 6 and sorted(pool.take(6)) == [*range(4, 10)]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_pages_come_back_and_sequences_share_no_page_but_their_prompts(data: st.DataObject) -> None:
    page_size, max_tokens, slots = 32, 40, 4
    groups = data.draw(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 6)), min_size=1, max_size=8))
    cache = PagedCache(slots, 100 + max_tokens, device=CPU, page_size=page_size)
    num_free = cache.pool.num_free
    waiting = [(number, prefix) for number, (prefix, samples) in enumerate(groups) for _ in range(samples)]
    held: dict[int, tuple[int, int]] = {}
    while waiting or held:
        free = [slot for slot in range(slots) if slot not in held]
        is_admission = bool(waiting and free) and (not held or data.draw(st.booleans()))
        if is_admission:
            slot, (group, prefix) = data.draw(st.sampled_from(free)), waiting.pop(0)
            loaded = cache.occupy(slot, group, prefix=prefix, positions=prefix + max_tokens)
            assert all(part < -(-prefix // page_size) for part, _ in loaded)
            held[slot] = (group, prefix)
            cache.release_groups_before(waiting[0][0] if waiting else len(groups))
        else:
            slot = data.draw(st.sampled_from(sorted(held)))
            cache.vacate(slot)
            del held[slot]
        tables = cache.tables(range(slots))
        for one, (group, prefix) in held.items():
            num_pages, num_shared = -(-(prefix + max_tokens) // page_size), prefix // page_size
            own = tables[one, :num_pages].tolist()
            assert len(set(own)) == num_pages and own[num_shared] == one, "it writes behind what is shared"
            for other, (its_group, _) in held.items():
                if other != one:
                    common = set(own) & set(tables[other].tolist())
                    assert common == (set(own[:num_shared]) if its_group == group else set())
    assert cache.pool.num_free == num_free


def test_a_groups_prompt_is_held_once() -> None:
    words = np.arange(150) % VOCAB_SIZE
    _, tile = tile_of(shaped("llama"), [Prompt(words[:140], key) for key in range(6)], 8)
    tables = tile.cache.table[:6].tolist()
    assert len({tuple(table[:2]) for table in tables}) == 1 and len({table[2] for table in tables}) == 6


def test_memory_that_is_short_is_said_with_the_length_that_fits() -> None:
    needed = tile_bytes(256, 1 << 26, 32_000)
    check_room(needed, needed, 256, 1000)
    with pytest.raises(ConfigError, match=r"256 sequences of up to 1,000 tokens.* may have 500 tokens"):
        check_room(needed, needed // 2, 256, 1000)


def test_stop_strings_are_searched_in_all_tokens_since_the_last_look() -> None:
    ends = Ends({5}, tokenizer().get_vocab_size(), stops=("ab",), tokenizer=tokenizer())
    text = tokenizer().encode("ba ba ab ab", add_special_tokens=False).ids
    tokens = np.zeros((3, 40), np.int64)
    tokens[1, : len(text)] = text
    zero, whole = np.zeros(1, np.int64), np.array([len(text)])
    (length,) = ends.stop_lengths(tokens, np.array([1]), zero, whole)
    assert tokenizer().decode(text[:length]).endswith("ab") and "ab" not in tokenizer().decode(text[: length - 1])
    (unfinished,) = ends.stop_lengths(tokens, np.array([1]), zero, np.array([length - 1]))
    assert unfinished == 0


def test_the_golden_rollouts_hold_what_this_file_is_about() -> None:
    golden = json.loads(FILE.read_text(encoding="utf-8"))["rollouts"]
    reasons = [rollout["reason"] for name in WITH_COMPANY for rollout in golden[name]]
    assert {"stop", "length"} == set(reasons) and len(WITH_COMPANY) >= 10
    assert copy.copy(ON_GPU).steps(16) == 4 and ON_GPU.steps(64) == 8


@pytest.mark.parametrize("shape", ["llama", "qwen3", "gpt2"])
def test_by_the_paged_kernels_twin_logprobs_are_those_of_transformers_attention(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = np.arange(90) % VOCAB_SIZE
    requested = [Prompt(words[:length], key) for key, length in enumerate((70, 70, 70, 3, 90, 1))]
    params = SamplingParams(temperature=1.0, max_tokens=24)
    expected = Generator(shaped(shape), ends=ENDS, slots=16).generate(requested, params)
    monkeypatch.setattr(Generator, "_kernel", lambda self: paged_attention)
    generator = Generator(shaped(shape), ends=ENDS, slots=16, mode=ON_GPU)
    found = generator.generate(requested, params)
    for ours, expected_rollout in zip(found, expected, strict=True):
        assert ours.tokens.tolist() == expected_rollout.tokens.tolist()
        np.testing.assert_allclose(ours.logprobs, expected_rollout.logprobs, atol=2e-5)
    assert shaped(shape).config._attn_implementation == "sdpa"
