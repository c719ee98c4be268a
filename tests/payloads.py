"""What somebody who means harm would put into a file that we open: proof that it ran, and nothing worse."""

import io
import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch


class Payload:
    """Unpickled, it makes a folder."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.marker),)

    def ran(self) -> bool:
        """Whether anybody unpickled it."""
        return self.marker.exists()


def planted(path: Path, payload: Payload) -> Iterator[bytes]:
    """What could be put in place of a file, for whoever opens it by its kind: each runs where it is unpickled,
    constructed from YAML, or taken for a type of its own."""
    yield pickle.dumps(payload)
    if path.suffix in (".npz", ".npy"):
        buffer = io.BytesIO()
        write = np.savez if path.suffix == ".npz" else np.save
        write(buffer, np.array([payload], dtype=object), allow_pickle=True)
        yield buffer.getvalue()
    elif path.suffix in (".json", ".yaml"):
        yield f"!!python/object/apply:os.mkdir ['{payload.marker}']\n".encode()
    elif path.suffix in (".parquet", ".arrow"):
        metadata = {b"ARROW:extension:name": b"arrow.py_extension_type"}
        metadata[b"ARROW:extension:metadata"] = pickle.dumps(payload)
        table = pa.table([pa.array([1])], schema=pa.schema([pa.field("a", pa.int64(), metadata=metadata)]))
        sink = pa.BufferOutputStream()
        if path.suffix == ".parquet":
            pq.write_table(table, sink)
        else:
            with pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
        yield sink.getvalue().to_pybytes()
    elif path.suffix in (".metadata", ".distcp") or path.name == ".metadata":
        buffer = io.BytesIO()
        torch.save(payload, buffer)
        yield buffer.getvalue()
