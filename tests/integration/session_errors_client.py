"""Mistakes of a client, by the official SDK, beside a loop that makes none: `python session_errors_client.py URL`.

Prints one JSON line: what the loop saw alone, and what it saw beside the mistakes.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import tinker
from tinker import types

ADAM = types.AdamParams(learning_rate=0.01)
LAST = 9
"""Token of the mistakes' sequences."""


def datum(tokens: list[int], **inputs: Any) -> types.Datum:
    """A sequence whose targets are the tokens that follow, unless it says otherwise."""
    loss_inputs = {"target_tokens": tokens[1:], **inputs}
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=loss_inputs)


def tensor(shape: Any, dtype: Any) -> types.TensorData:
    """Zeros."""
    return types.TensorData.from_numpy(np.zeros(shape, dtype))


async def loop(service: Any) -> AsyncIterator[Any]:
    """Steps without mistakes; yields what each showed."""
    client = await service.create_lora_training_client_async("tiny", rank=4, seed=1)
    for step in range(3):
        passed = await client.forward_backward_async([datum([step, 5, 6, 7], weights=[1.0] * 3)], "cross_entropy")
        updated = await client.optim_step_async(ADAM)
        yield [(await passed).metrics, (await updated).metrics]
    sampler = await client.save_weights_and_get_sampling_client_async()
    settings = types.SamplingParams(max_tokens=3, seed=2)
    sampled = await sampler.sample_async(types.ModelInput.from_ints([1, 2]), 2, settings)
    yield [list(sequence.tokens) for sequence in sampled.sequences]


def mistakes(client: Any, sampler: Any) -> dict[str, Callable[[], Any]]:
    """What the client hears -> the call."""
    tokens = [1, 2, 3, LAST]

    def passes(item: types.Datum, loss: Any = "cross_entropy", config: Any = None) -> Callable[[], Any]:
        return lambda: client.forward_backward([item], loss, config)

    def sample(prompt: list[int], number: int = 1, **settings: Any) -> Callable[[], Any]:
        return lambda: sampler.sample(types.ModelInput.from_ints(prompt), number, types.SamplingParams(**settings))

    nan = {"logprobs": [0.0] * 3, "advantages": [1.0, float("nan"), 1.0]}
    return {
        "loss_fn: 'stable_reinforce' is not served": passes(datum(tokens), "stable_reinforce"),
        "loss_fn_config: 'beta' is not a setting of ppo": passes(datum(tokens), "ppo", {"beta": 1.0}),
        "weights has 2 numbers": passes(datum(tokens, weights=[1.0, 1.0])),
        "target_tokens must be of int64": passes(datum(tokens, target_tokens=tensor(3, np.float32))),
        "has more than one dimension": passes(datum(tokens, target_tokens=tensor((3, 2), np.int64))),
        "target_tokens has 2 numbers": passes(datum(tokens, target_tokens=[1, 2])),
        "target_tokens holds 300": passes(datum(tokens, target_tokens=[1, 2, 300])),
        "target_tokens holds -1": passes(datum(tokens, target_tokens=[1, 2, -1])),
        "model_input holds 70000": passes(datum([70000, *tokens])),
        "has no 'logprobs', which the loss reads": passes(datum(tokens, advantages=[1.0] * 3), "ppo"),
        "'reward' is not an input of the loss": passes(datum(tokens, reward=tensor(3, np.float32))),
        "advantages holds a number that is not finite": passes(datum(tokens, **nan), "importance_sampling"),
        "the model takes 128": passes(datum([1] * 200)),
        "no forward_backward since the last optim_step": lambda: client.optim_step(ADAM),
        "adam_params.beta1": lambda: client.optim_step(types.AdamParams(beta1=1.0)),
        "Invalid value of 'path'": lambda: client.save_state("a/b"),
        "it exceeds the model's": sample([1] * 120, max_tokens=100),
        "300 is no token of this model": sample([300], max_tokens=1),
        "it has no tokens": sample([], max_tokens=1),
        "num_samples": sample([1], 10**6, max_tokens=1),
        "sampling_params.top_p": sample([1], max_tokens=1, top_p=0.0),
    }


async def main(url: str) -> None:
    service = tinker.ServiceClient(base_url=url, api_key="tml-any")
    alone = [seen async for seen in loop(service)]
    client = await service.create_lora_training_client_async("tiny", rank=4)
    sampler = await client.save_weights_and_get_sampling_client_async()
    waiting, disturbed = [*mistakes(client, sampler).items()], []
    async for seen in loop(service):
        disturbed.append(seen)
        for words, call in waiting[len(disturbed) - 1 :: len(alone)]:
            await heard(words, call)
    await (await client.forward_backward_async([datum([1, 2, 3])], "cross_entropy"))
    assert (await (await client.optim_step_async(ADAM))).metrics, "mistakes are not held against a client"
    sys.stdout.write(json.dumps([alone, disturbed]) + "\n")


async def heard(words: str, call: Callable[[], Any]) -> None:
    """Assert that a call fails with these words."""
    try:
        future = call()
        await (asyncio.wrap_future(future) if hasattr(future, "add_done_callback") else future)
    except tinker.TinkerError as error:
        assert words in str(error), f"{words}: {error}"
        return
    raise AssertionError(f"{words}: no error")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
