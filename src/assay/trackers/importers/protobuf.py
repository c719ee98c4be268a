"""Message classes of protocol buffers, made from the lines of a schema that a reader needs: no package of its tool."""

import re
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_MESSAGE = re.compile(r"message (\w+) \{(.*?)\}", re.DOTALL)
_FIELD = re.compile(r"(repeated )?(\w+) (\w+) = (\d+);")


def message_classes(schema: str) -> dict[str, Any]:
    """Return a class for each `message` of a schema in the language of .proto files.

    Fields that the schema does not name are skipped. Texts are declared as `bytes`, because damaged ones must not
    make their message unreadable.
    """
    file = FileDescriptorProto(name="schema.proto", syntax="proto2")  # in proto2 each field knows whether it is set
    for name, body in _MESSAGE.findall(schema):
        message = file.message_type.add(name=name)
        for repeated, kind, field_name, number in _FIELD.findall(body):
            field = message.field.add(name=field_name, number=int(number))
            field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            if kind[0].isupper():
                field.type, field.type_name = field.TYPE_MESSAGE, f".{kind}"
            else:
                field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    pool = DescriptorPool()
    pool.Add(file)
    return {message.name: GetMessageClass(pool.FindMessageTypeByName(message.name)) for message in file.message_type}


def text_of(data: bytes) -> str:
    """Return a text; bytes that are no UTF-8 are replaced."""
    return data.decode("utf-8", "replace")
