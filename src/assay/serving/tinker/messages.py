"""The protobuf messages of the Tinker API, for the fields that are served.

They are declared here, so that the server needs `protobuf` but not the client's SDK; a test holds the declaration equal
to the SDK's own. Fields that are not declared stay in a parsed message as unknown fields, and in its digest.
"""

import re
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from assay.serving.api_error import ApiError

SCHEMA = """
message SampleResponse {
  repeated SampledSequence sequences = 1;
  bytes prompt_logprobs = 2;
  TopkLogprobs topk_prompt_logprobs = 3;
}
message SampledSequence {
  StopReason stop_reason = 1;
  bytes tokens = 2;
  bytes logprobs = 3;
}
message TopkLogprobs {
  bytes token_ids = 1;
  bytes logprobs = 2;
  uint32 k = 3;
  uint32 length = 4;
}
message SparseCsr {
  bytes values = 1;
  bytes crow_indices = 2;
  bytes col_indices = 3;
}
message Tensor {
  bytes dense = 1;
  SparseCsr sparse_csr = 2;
  DType dtype = 3;
  repeated int64 shape = 4;
}
message BatchedTensor {
  bytes data = 1;
  bytes offsets = 2;
  DType dtype = 3;
  repeated int64 trailing_shape = 4;
}
message ArrayRecord {
  string type_tag = 1;
  map<string, BatchedTensor> fields = 2;
  int64 num_datums = 3;
}
message ForwardBackwardOutput {
  string loss_fn_output_type = 1;
  repeated ArrayRecord loss_fn_outputs = 2;
  map<string, double> metrics = 3;
}
message ForwardBackwardRequest {
  string model_id = 1;
  int32 seq_id = 2;
  repeated Datum data = 3;
  string loss_fn = 4;
  map<string, double> loss_fn_config = 5;
  bool forward_only = 6;
  map<string, LossConfigValue> loss_fn_config_v2 = 7;
}
message LossConfigValue {
  double number = 1;
  string text = 2;
}
message Datum {
  repeated Chunk model_input = 1;
  map<string, Tensor> loss_fn_inputs = 2;
  repeated ProvenanceSpan model_input_spans = 3;
  repeated ProvenanceSpan loss_fn_input_spans = 4;
}
message ProvenanceSpan {
  PromptProvenanceSpan prompt_tokens = 1;
  SampledProvenanceSpan sampled_tokens = 2;
}
message PromptProvenanceSpan {
  string sequence_id = 1;
  int64 offset = 2;
  int64 length = 3;
}
message SampledProvenanceSpan {
  string sequence_id = 1;
  int64 offset = 2;
  int64 length = 3;
}
message Chunk {
  EncodedTextChunk encoded_text = 1;
}
message EncodedTextChunk {
  bytes tokens = 1;
}
enum StopReason {
  STOP_REASON_STOP = 0;
  STOP_REASON_LENGTH = 1;
}
enum DType {
  DTYPE_UNSPECIFIED = 0;
  DTYPE_FLOAT32 = 1;
  DTYPE_INT64 = 2;
  DTYPE_INT32 = 3;
  DTYPE_BFLOAT16 = 4;
}
"""
FLOAT32, INT64 = 1, 2
"""Values of `DType` that clients send."""
PACKAGE = "assay.tinker"
_BLOCK = re.compile(r"(message|enum) (\w+) \{\n(.*?)\}", re.DOTALL)
_FIELD = re.compile(r"(repeated )?(map<string, )?(\w+)>? (\w+) = (\d+);")
_Field = descriptor_pb2.FieldDescriptorProto


def new_message(name: str) -> Any:
    """Return an empty message."""
    return _classes()[f"{PACKAGE}.{name}"]()


def parse_message(name: str, data: bytes) -> Any:
    """Parse a message. Raises `ApiError` if it is cut short or something else."""
    message = new_message(name)
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise ApiError(
            f"The body is not a {name} message: it is cut short or damaged. Send it again.", code="invalid_protobuf"
        ) from None
    return message


def canonical_bytes(message: Message) -> bytes:
    """Return the one serialization of a message: a repeated request has equal bytes."""
    data: bytes = message.SerializeToString(deterministic=True)
    return data


@cache
def _classes() -> dict[str, type[Message]]:
    """Return the message classes by name, from a pool of their own: the SDK's may be loaded in this process, too."""
    file = descriptor_pb2.FileDescriptorProto(name="tinker.proto", package=PACKAGE, syntax="proto3")
    enums = {name for kind, name, _ in _BLOCK.findall(SCHEMA) if kind == "enum"}
    for kind, name, body in _BLOCK.findall(SCHEMA):
        if kind == "enum":
            enum = file.enum_type.add(name=name)
            for value, number in re.findall(r"(\w+) = (\d+);", body):
                enum.value.add(name=value, number=int(number))
            continue
        message = file.message_type.add(name=name)
        for repeated, is_map, type_name, field, number in _FIELD.findall(body):
            if is_map:
                entry = message.nested_type.add(name=f"{field.title().replace('_', '')}Entry")
                entry.options.map_entry = True
                _add_field(entry, "key", 1, "string", enums)
                _add_field(entry, "value", 2, type_name, enums)
                type_name, repeated = f"{name}.{entry.name}", "repeated "
            _add_field(message, field, int(number), type_name, enums, is_repeated=bool(repeated))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    classes: dict[str, type[Message]] = message_factory.GetMessageClassesForFiles([file.name], pool)
    return classes


def _add_field(
    message: Any, name: str, number: int, type_name: str, enums: set[str], *, is_repeated: bool = False
) -> None:
    field = message.field.add(name=name, number=number)
    field.label = _Field.LABEL_REPEATED if is_repeated else _Field.LABEL_OPTIONAL
    scalar = getattr(_Field, f"TYPE_{type_name.upper()}", None)
    if scalar is not None:
        field.type = scalar
    else:
        field.type = _Field.TYPE_ENUM if type_name in enums else _Field.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{type_name}"
