"""Training loops of the `tinker` SDK, in a process of their own: `python -m assay.checks.api.tinker_loops`.

Reads one JSON line per loop, {"loop": "sft", "url": ..., "base": ..., "key": ..., "change": "doubled optim_step"}, and
writes one line with all that the client saw. `change` makes the loop itself do an operation of its second step twice,
or not at all: what a server does that executes one request twice, or loses it.
"""

from typing import Any

import tinker
from tinker import types

from assay.checks.api.client import run_loops

NUM_STEPS = 4
CHANGED_STEP = 1
CHUNK = 2
"""Sequences of a batch that the proxy loses or repeats together."""
PROMPT = [5, 6, 7, 8]


class MixedUpError(Exception):
    """The server returned the result of another request."""


class Loop:
    """One loop."""

    def __init__(self, service: Any, base: str, change: str) -> None:
        self.seen: dict[str, Any] = {}
        """What the client saw, by a text that says what it is."""
        self._service = service
        self._base = base
        self._change = change
        self._step = 0

    def sft(self) -> None:
        """Supervised steps, a saved state, and steps of a model that resumes from it."""
        client = self._new_model()
        for step in range(NUM_STEPS):
            self._train(client, [self._datum(step, index) for index in range(6)], "cross_entropy")
        path = self._wait(client.save_state("half"))
        resumed = _ready(self._service.create_training_client_from_state_with_optimizer(path.path))
        self._train(resumed, [self._datum(7, index) for index in range(6)], "cross_entropy")
        self._probe(resumed)

    def rl(self) -> None:
        """Samples with a seed, and a policy step on them."""
        client = self._new_model()
        settings = types.SamplingParams(max_tokens=4, seed=3, temperature=1.0)
        for _ in range(NUM_STEPS):
            sampler = _ready(client.save_weights_and_get_sampling_client())
            prompt = types.ModelInput.from_ints(PROMPT)
            sequences = self._wait(sampler.sample(prompt=prompt, num_samples=4, sampling_params=settings)).sequences
            self._see("samples", [[[*item.tokens], [*map(float, item.logprobs)]] for item in sequences])
            self._train(
                client, [_policy_datum(item, index) for index, item in enumerate(sequences)], "importance_sampling"
            )
        self._probe(client)

    def dpo(self) -> None:
        """A preference loss that the client computes."""
        client = self._new_model()

        def loss(_: Any, logprobs: list[Any]) -> tuple[Any, dict[str, float]]:
            margin = logprobs[0].sum() - logprobs[1].sum()
            return (1.0 + (-0.1 * margin).exp()).log(), {"margin": float(margin.detach())}

        for step in range(NUM_STEPS):
            data = [self._datum(step, 0), self._datum(step, 1)]
            for _ in range(self._num_times("forward_backward")):
                self._see("metrics", dict(self._wait(client.forward_backward_custom(data, loss)).metrics))
            steps = range(self._num_times("optim_step"))
            for update in [self._wait(client.optim_step(types.AdamParams(learning_rate=0.01))) for _ in steps][:1]:
                self._see("update", update.metrics)
            self._step += 1
        self._probe(client)

    def _new_model(self) -> Any:
        return _ready(self._service.create_lora_training_client(self._base, rank=4, seed=1))

    def _train(self, client: Any, data: list[Any], loss_fn: str) -> None:
        """A pass and an update, sent before either is waited for."""
        passes = self._num_times("forward_backward")
        steps = self._num_times("optim_step")
        trained = data if passes else data[:-CHUNK]
        futures = [client.forward_backward(trained, loss_fn)]
        futures += [client.forward_backward(data[-CHUNK:], loss_fn)] if passes > 1 else []
        updates = [client.optim_step(types.AdamParams(learning_rate=0.01)) for _ in range(steps)]
        for output in [future.result() for future in futures][:1]:
            self._see("logprobs", _logprobs(output, trained))
            self._see("metrics", dict(output.metrics))
        for update in [future.result() for future in updates][:1]:
            self._see("update", update.metrics)
        self._step += 1

    def _see(self, about: str, value: Any) -> None:
        self.seen[f"{about} of step {self._step + 1}"] = value

    def _num_times(self, operation: str) -> int:
        kind, _, changed = self._change.partition(" ")
        if self._step != CHANGED_STEP or changed != operation:
            return 1
        return 2 if kind == "doubled" else 0

    def _probe(self, client: Any) -> None:
        """What the weights are, as far as a client can tell."""
        data = [self._datum(9, index) for index in range(4)]
        self.seen["logprobs at the end"] = _logprobs(self._wait(client.forward(data, "cross_entropy")), data)

    def _datum(self, step: int, index: int) -> Any:
        tokens = [1 + (7 * step + 3 * index + position) % 50 for position in range(6 + index % 3)]
        inputs: dict[str, Any] = {"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)}
        return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)

    def _wait(self, future: Any) -> Any:
        return future.result()


def _ready(client: Any) -> Any:
    """Return a client, of which newer SDKs return a future."""
    return client.result() if hasattr(client, "result") else client


def _logprobs(output: Any, data: list[Any]) -> list[list[float]]:
    """Return the logprobs of a pass. Raises `MixedUpError` if they cannot be those of its datums."""
    logprobs = [[*map(float, item["logprobs"].data)] for item in output.loss_fn_outputs]
    lengths = [len(datum.loss_fn_inputs["target_tokens"].data) for datum in data]
    if [*map(len, logprobs)] != lengths:
        raise MixedUpError(f"datums of {lengths} tokens got {[*map(len, logprobs)]} logprobs")
    return logprobs


def _policy_datum(sequence: Any, index: int) -> Any:
    tokens = [*PROMPT, *sequence.tokens]
    num_prompt = len(PROMPT) - 1
    inputs: dict[str, Any] = {
        "target_tokens": tokens[1:],
        "logprobs": [0.0] * num_prompt + [*map(float, sequence.logprobs)],
        "advantages": [0.0] * num_prompt + [1.0 if index % 2 else -1.0] * len(sequence.tokens),
    }
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs)


def run(loop: str, url: str, base: str, key: str, change: str, **_: Any) -> dict[str, Any]:
    """Run a loop; return what its client saw, and its error."""
    running = None
    try:
        service = tinker.ServiceClient(base_url=url, api_key=key)
        running = Loop(service, base, change)
        getattr(running, loop)()
        if hasattr(service, "close"):
            service.close("success").result()
        return {"seen": running.seen, "error": None, "wrong": ""}
    except MixedUpError as error:
        return {"seen": {}, "error": None, "wrong": str(error)}
    except Exception as error:
        return {"seen": {} if running is None else running.seen, "error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    run_loops(run)
