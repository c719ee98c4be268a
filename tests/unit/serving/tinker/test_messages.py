"""Our declaration of the messages is the SDK's, for the fields that are served."""

import re

import numpy as np
import pytest

from assay.serving.api_error import ApiError
from assay.serving.sessions.request_log import PROTOBUF, Request
from assay.serving.tinker import results
from assay.serving.tinker.bodies import read_request
from assay.serving.tinker.messages import SCHEMA, canonical_bytes, new_message, parse_message

public_pb = pytest.importorskip("tinker.proto.tinker_public_pb2")
MESSAGES = re.findall(r"message (\w+)", SCHEMA)


def fields(descriptor):
    return {
        field.name: (
            field.number, field.type, field.is_repeated,
            field.message_type and field.message_type.name, field.enum_type and field.enum_type.name,
        )
        for field in descriptor.fields
    }  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
def test_each_field_has_the_number_and_type_of_the_sdk(name: str) -> None:
    ours, of_sdk = new_message(name).DESCRIPTOR, getattr(public_pb, name).DESCRIPTOR
    known = fields(of_sdk)
    assert fields(ours) == {field: known[field] for field in fields(ours)}
    for field in ours.fields:
        if field.enum_type:
            values = field.enum_type.values_by_name
            named = of_sdk.fields_by_name[field.name].enum_type.values_by_name
            assert {key: value.number for key, value in values.items()} == {
                key: value.number for key, value in named.items()
            }


def request_of(body: bytes) -> Request:
    return Request(1, "forward_backward", PROTOBUF, 0.0, "", body)


def datum(message, tokens=(1, 2, 3), **inputs):
    added = message.data.add()
    added.model_input.add().encoded_text.tokens = np.asarray(tokens, np.int32).tobytes()
    for name, (values, dtype) in inputs.items():
        tensor = added.loss_fn_inputs[name]
        tensor.dense, tensor.dtype = np.asarray(values, dtype).tobytes(), {"float32": 1, "int64": 2}[dtype]
    return added


def test_what_the_sdk_sends_is_read_as_it_was_meant() -> None:
    message = public_pb.ForwardBackwardRequest(model_id="m", seq_id=3, loss_fn="ppo", forward_only=True)
    message.loss_fn_config_v2["clip"].number = 0.2
    message.loss_fn_config_v2["mode"].text = "a"
    datum(message, target_tokens=([2, 3, 4], "int64"), weights=([0.5, 1, 0], "float32"))
    body = read_request(request_of(message.SerializeToString()))
    assert (body.loss_fn, body.is_forward_only, body.loss_fn_config) == ("ppo", True, {"clip": 0.2, "mode": "a"})
    assert body.datums[0].tokens.tolist() == [1, 2, 3]
    assert body.datums[0].inputs["target_tokens"].tolist() == [2, 3, 4]
    assert body.datums[0].inputs["weights"].tolist() == [0.5, 1.0, 0.0]


def test_a_field_that_we_do_not_declare_stays_in_the_digest() -> None:
    plain, image = public_pb.ForwardBackwardRequest(model_id="m"), public_pb.ForwardBackwardRequest(model_id="m")
    image.data.add().model_input.add().image.data = b"png"
    plain.data.add().model_input.add()
    texts = {
        canonical_bytes(parse_message("ForwardBackwardRequest", item.SerializeToString())) for item in (plain, image)
    }
    assert len(texts) == 2


def test_the_sdk_reads_our_results() -> None:
    from tinker.proto.response_conv import deserialize_forward_backward_output, deserialize_sample_response

    logprobs = [np.array([-1, -2], np.float32), np.array([-3], np.float32)]
    output = deserialize_forward_backward_output(results.forward_backward(logprobs, {"loss:sum": 6.0}).body)
    assert output.metrics == {"loss:sum": 6.0}
    assert [item["logprobs"].tolist() for item in output.loss_fn_outputs] == [[-1, -2], [-3]]

    top = ([[1, 2], [3, 4]], [[-1, -2], [-3, -4]])
    completions = [
        results.SampledSequence([7, 8], [-1, -2], is_stopped=True),
        results.SampledSequence([9], [-3], is_stopped=False),
    ]
    result = results.samples(completions, prompt_logprobs=[float("nan"), -0.5], top_prompt_logprobs=top)
    response = deserialize_sample_response(result.body)
    assert [(item.tokens, item.logprobs, item.stop_reason) for item in response.sequences] == [
        ([7, 8], [-1, -2], "stop"), ([9], [-3], "length"),
    ]  # fmt: skip
    assert response.prompt_logprobs == [None, -0.5]
    assert response.topk_prompt_logprobs is not None and len(response.topk_prompt_logprobs) == 2


def damaged(message) -> dict[str, bytes]:
    """What a client may get wrong, by the error that it hears."""
    found = {}

    def note(words: str, change) -> None:
        wrong = type(message)()
        wrong.CopyFrom(message)
        change(wrong.data[0])
        found[words] = wrong.SerializeToString()

    def shape(item, values):
        item.loss_fn_inputs["weights"].shape.extend(values)

    note("are not whole 32-bit", lambda item: setattr(item.model_input[0].encoded_text, "tokens", b"abc"))
    note("Images and audio", lambda item: setattr(item.model_input.add().image, "data", b"png"))
    note("must be float32 or int64", lambda item: setattr(item.loss_fn_inputs["weights"], "dtype", 4))
    note("not whole float32", lambda item: setattr(item.loss_fn_inputs["weights"], "dense", b"abcde"))
    note("the shape is", lambda item: shape(item, [4]))
    note("more than one dimension", lambda item: shape(item, [3, 1]))
    return found


def test_a_wrong_tensor_is_named() -> None:
    message = public_pb.ForwardBackwardRequest(model_id="m", seq_id=1, loss_fn="cross_entropy")
    datum(message, weights=([1, 2, 3], "float32"))
    for words, body in damaged(message).items():
        with pytest.raises(ApiError, match=r"data\[0\]\..*" + words):
            read_request(request_of(body))
    with pytest.raises(ApiError, match="cut short"):
        read_request(request_of(message.SerializeToString()[:-5]))
    message.loss_fn_config["clip"] = float("nan")
    with pytest.raises(ApiError, match=r"loss_fn_config\.clip is not finite"):
        read_request(request_of(message.SerializeToString()))
