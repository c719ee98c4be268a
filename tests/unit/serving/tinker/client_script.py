"""Every call that loops make, by the official SDK: `python client_script.py URL`. A process of its own, because the SDK
leaves connections open."""

import sys
from typing import Any

import tinker
from tinker import types


def main(url: str) -> None:
    service = tinker.ServiceClient(base_url=url, api_key="tml-any")
    client = service.create_lora_training_client("tiny", rank=4).result()
    assert (client.get_info().model_name, client.get_info().lora_rank) == ("tiny", 4)
    prompt = types.ModelInput.from_ints([1, 2, 3])
    data = [types.Datum(model_input=prompt, loss_fn_inputs={"target_tokens": [2, 3, 4], "weights": [1.0, 1.0, 0.0]})]

    passed, stepped = client.forward_backward(data * 1500, "cross_entropy"), client.optim_step(types.AdamParams())
    output = passed.result()
    assert output.metrics == {"loss:sum": 4500.0} and len(output.loss_fn_outputs) == 1500
    assert output.loss_fn_outputs[1499]["logprobs"].tolist() == [0, -1, -2]
    assert stepped.result().metrics == {"passes": 2.0}  # sent in two chunks

    def total(_, logprobs):
        return -sum(item.sum() for item in logprobs), {"extra": 1.0}

    assert client.forward_backward_custom(data, total).result().metrics["extra"] == 1.0
    sampler = client.save_weights_and_get_sampling_client().result()
    settings = types.SamplingParams(max_tokens=4, seed=1, stop=["a"], temperature=0.5)
    sequences = sampler.sample(prompt=prompt, num_samples=2, sampling_params=settings).result().sequences
    assert [(item.tokens, item.stop_reason) for item in sequences] == [([1, 2], "stop")] * 2
    assert client.forward_backward([sampled_datum([1, 2, 3], sequences[1])], "importance_sampling").result().metrics
    assert sampler.compute_logprobs(prompt).result() == [None, -1.0, -1.0]
    path = client.save_state("a", ttl_seconds=7200).result().path
    resumed = service.create_training_client_from_state_with_optimizer(path).result()
    assert resumed.model_id.endswith(":train:1")
    message = error_of(tinker.RequestFailedError, client.save_state("../a"))
    assert "Invalid value of 'path'" in message, message
    assert client.optim_step(types.AdamParams()).result().metrics == {"passes": 2.0}
    message = error_of(tinker.BadRequestError, service.create_lora_training_client("other", rank=4))
    assert "no base model 'other'" in message, message

    rest = service.create_rest_client()
    assert rest.get_server_capabilities().result().supported_models[0].model_name == "tiny"
    assert rest.get_training_run(client.model_id).result().last_checkpoint.tinker_path == path
    (saved,) = rest.list_checkpoints(client.model_id).result().checkpoints
    assert (saved.expires_at - saved.time).total_seconds() == 7200
    assert rest.get_weights_info_by_tinker_path(path).result().lora_rank == 4
    rest.delete_checkpoint(client.model_id, "weights/a").result()
    assert rest.list_checkpoints(client.model_id).result().checkpoints == []
    service.close("success").result()


def sampled_datum(prompt: list[int], sampled: types.SampledSequence) -> types.Datum:
    """A prompt with a completion, and where its tokens come from."""
    tokens, zeros = [*prompt, *sampled.tokens], [0.0] * (len(prompt) - 1)
    inputs = {
        "target_tokens": tokens[1:],
        "logprobs": [*zeros, *(sampled.logprobs or [])],
        "advantages": [*zeros, *([1.0] * len(sampled.tokens))],
    }
    of_prompt, of_completion = types.PromptProvenanceSpan, types.SampledProvenanceSpan
    name, length = sampled.sequence_id, len(sampled.tokens)
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs).with_provenance(
        [of_prompt(sequence_id=name, length=len(prompt)), of_completion(sequence_id=name, length=length - 1)],
        [of_prompt(sequence_id=name, offset=1, length=len(zeros)), of_completion(sequence_id=name, length=length)],
    )


def error_of(kind: type[Exception], future: Any) -> str:
    try:
        future.result()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


if __name__ == "__main__":
    main(sys.argv[1])
