"""What a rank hears from another comes to life as a value, or not at all."""

import io
import pickle
import traceback
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import WriteItemType

from assay.base.errors import StoreError
from assay.distributed import values
from assay.distributed.ranks import Ranks
from assay.records.commit import FileDigest
from assay.records.suspect import Suspect, WrongArithmeticError
from assay.training.checkpoint.saver import LaneReceipts
from assay.training.trainer.spot_check import Checked
from forked_ranks import on_ranks
from payloads import Payload

SUSPECT = Suspect(rank=1, node="n", device="cpu", step=3, lane=0, is_certain=True)


def heard_from_rank_1(message: Any) -> Any:
    def program(ranks: Ranks) -> Any:
        everyone: list[Any] = [None, None]
        dist.all_gather_object(everyone, message if ranks.rank else None, group=ranks.control)
        return everyone[1]

    return program


@pytest.mark.parametrize("wrap", [lambda item: item, lambda item: [item], lambda item: StoreError(item)])
def test_a_payload_that_a_rank_sends_does_not_run(tmp_path: Path, wrap: Any) -> None:
    payload = Payload(tmp_path / "it ran")
    with pytest.raises(pickle.UnpicklingError, match=r"no plain value: (posix|nt)\.mkdir"):
        on_ranks(2, heard_from_rank_1(wrap(payload)), tmp_path / "ranks")
    assert not payload.ran()


VALUES = {
    "plain": [1, 2.5, None, "text", b"bytes", {"a": (1, {2})}],
    "file": FileDigest(path="p", num_bytes=1, sha256="s"),
    "dtype": (torch.float32, torch.Size((2, 3)), torch.device("cpu")),
    "index": MetadataIndex("a", (0, 1), 2),
    "array": np.arange(6.0).reshape(2, 3),
    "texts": pa.array(["a", None]),
    "lists": pa.chunked_array([pa.array([[1], [2, 3]])]),
    "words": pa.array(["a", "b", "a"]).dictionary_encode(),
    "sets": [{1, 2}, frozenset({3})],
    "times": pa.array([0], pa.timestamp("us", "UTC")),
    "hours": pa.array([1, 2], pa.time32("s")),
    "spans": [pa.time64("us"), pa.duration("s")],
    "table": pa.table({"a": [1], "b": ["x"]}),
}


def test_the_values_that_ranks_tell_one_another_arrive(tmp_path: Path) -> None:
    heard = on_ranks(2, heard_from_rank_1(VALUES), tmp_path)[0]
    assert heard.keys() == VALUES.keys()
    for name, value in VALUES.items():
        same = heard[name] == value
        assert np.all(same), name


def test_errors_and_receipts_arrive_with_what_they_hold(tmp_path: Path) -> None:
    receipts = LaneReceipts()
    receipts.rows.append((1, 2, 3, 2**63))
    message = (
        StoreError("the disk is full"),
        WrongArithmeticError("x", (SUSPECT,)),
        OSError(28, "full"),
        receipts,
    )
    store, wrong, system, heard = on_ranks(2, heard_from_rank_1(message), tmp_path)[0]
    assert (type(store), str(store)) == (StoreError, "the disk is full")
    assert wrong.suspects == (SUSPECT,)
    assert system.errno == 28
    assert heard == receipts


REQUESTED: dict[str, Any] = {
    # what a value's pickle asks for by name -> such a value
    "builtins.bytearray": bytearray(b"ab"),
    "builtins.complex": 1 + 2j,
    "builtins.range": range(2, 9, 3),
    "builtins.slice": slice(1, None, 2),
    "collections.OrderedDict": OrderedDict(a=1),
    "numpy.dtype": np.dtype("float32"),
    "numpy.ndarray": np.arange(4)[::2],
    "numpy._core.multiarray._reconstruct": np.zeros((2, 2), order="F"),
    "numpy._core.multiarray.scalar": np.float64(0.5),
    "pyarrow.lib._reconstruct_table": pa.table({"a": [1]}),
    "pyarrow.lib._restore_array": pa.array([1]),
    "pyarrow.lib.chunked_array": pa.chunked_array([[1], [2]]),
    "pyarrow.lib.field": pa.field("a", pa.int64()),
    "pyarrow.lib.py_buffer": pa.py_buffer(b"ab"),
    "pyarrow.lib.schema": pa.schema({"a": pa.int64()}),
    "pyarrow.lib.binary": pa.binary(4),
    "pyarrow.lib.decimal128": pa.decimal128(9, 2),
    "pyarrow.lib.decimal256": pa.decimal256(50, 2),
    "pyarrow.lib.dictionary": pa.dictionary(pa.int8(), pa.string()),
    "pyarrow.lib.large_list": pa.large_list(pa.int8()),
    "pyarrow.lib.list_": pa.list_(pa.int8()),
    "pyarrow.lib.map_": pa.map_(pa.string(), pa.int8()),
    "pyarrow.lib.struct": pa.struct({"a": pa.int8()}),
    "pyarrow.lib.timestamp": pa.timestamp("us", "UTC"),
    "pyarrow.lib.type_for_alias": pa.int8(),
    "torch.Size": torch.Size((2, 3)),
    "torch.device": torch.device("cpu"),
    "torch.float32": torch.float32,
    "torch.serialization._get_layout": torch.strided,
    "traceback.FrameSummary": traceback.FrameSummary("f.py", 3, "f", line="x"),
    "traceback.StackSummary": traceback.StackSummary.from_list([]),
}


class Asking(values._ValueUnpickler):
    """Notes what a pickle asks for."""

    def __init__(self, message: Any) -> None:
        super().__init__(io.BytesIO(pickle.dumps(message)))
        self.read_names: set[str] = set()

    def find_class(self, module: str, name: str, /) -> Any:
        self.read_names.add(f"{module}.{name}")
        return super().find_class(module, name)


@pytest.mark.parametrize("requested", REQUESTED)
def test_a_value_that_ranks_may_say_is_admitted_by_name(requested: str) -> None:
    hearing = Asking(REQUESTED[requested])
    heard = hearing.load()
    assert requested in hearing.read_names
    assert type(heard) is type(REQUESTED[requested]) and np.all(heard == REQUESTED[requested])


def test_nothing_is_admitted_that_no_value_asks_for() -> None:
    admitted = {f"{module}.{name}" for module, names in values._ADMITTED.items() for name in names}
    assert admitted == set(REQUESTED) - {"torch.float32"}


@pytest.mark.parametrize(
    "requested",
    [
        "builtins.eval", "builtins.getattr", "numpy.load", "pathlib.PurePosixPath", "not_imported.Thing",
        "assay.base.digest.sha256_of_bytes", "torch.nn.modules.linear.Linear", "collections.Counter",
        "datetime.timedelta", "http.HTTPStatus", "urllib.parse.SplitResult",
        "assay.distributed.tree.PartialSums",
    ],
)  # fmt: skip
def test_what_is_no_value_is_not_admitted(requested: str) -> None:
    module, _, name = requested.rpartition(".")
    with pytest.raises(pickle.UnpicklingError, match=f"no plain value: {requested}"):
        Asking(None).find_class(module, name)


@pytest.mark.parametrize(
    "found",
    [FileDigest, Suspect, WriteItemType, MetadataIndex, Checked, LaneReceipts, ArithmeticError, StoreError],
)
def test_plain_classes_of_ours_and_errors_of_all_are_admitted(found: type) -> None:
    assert Asking(None).find_class(found.__module__, found.__qualname__) is found
