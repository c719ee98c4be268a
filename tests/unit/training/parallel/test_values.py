"""What a rank hears from another comes to life as a value, or not at all."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import MetadataIndex

from assay.base.errors import StoreError
from assay.records.commit import FileDigest
from assay.records.suspect import Suspect, WrongArithmeticError
from assay.training.checkpoint.saver import LaneReceipts
from assay.training.parallel.ranks import Ranks
from forked_ranks import on_ranks
from payloads import Payload

SUSPECT = Suspect(rank=1, node="n", device="cpu", step=3, lane=0, is_certain=True)


def heard_from_rank_1(said: Any) -> Any:
    def program(ranks: Ranks) -> Any:
        everyone: list[Any] = [None, None]
        dist.all_gather_object(everyone, said if ranks.rank else None, group=ranks.control)
        return everyone[1]

    return program


@pytest.mark.parametrize("wrap", [lambda each: each, lambda each: [each], lambda each: StoreError(each)])
def test_a_payload_that_a_rank_sends_does_not_run(tmp_path: Path, wrap: Any) -> None:
    payload = Payload(tmp_path / "it ran")
    with pytest.raises(pickle.UnpicklingError, match=r"no value: it asks for (posix|nt)\.mkdir"):
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
    "times": pa.array([0], pa.timestamp("us", "UTC")),
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
    receipts.add(step=1, lane=2, num_rows=3, digest=2**63)
    said = (
        StoreError("the disk is full"),
        WrongArithmeticError("x", (SUSPECT,)),
        OSError(28, "full"),
        receipts,
    )
    store, wrong, system, heard = on_ranks(2, heard_from_rank_1(said), tmp_path)[0]
    assert (type(store), str(store)) == (StoreError, "the disk is full")
    assert wrong.suspects == (SUSPECT,)
    assert system.errno == 28
    assert heard == receipts
