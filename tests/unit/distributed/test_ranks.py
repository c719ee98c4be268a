"""Who a rank is, in which groups it talks, and over which interface."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from assay.distributed import values
from assay.distributed.ranks import Ranks
from forked_ranks import on_ranks


def who(ranks: Ranks) -> tuple[int, int, bool, bool]:
    return ranks.rank, ranks.world_size, ranks.outer is not None, ranks.inner is not None


@pytest.mark.parametrize(
    ("world_size", "shards_weights", "is_sharded"), [(1, False, False), (1, True, False), (2, True, True)]
)
def test_ranks_hold_all_weights_unless_there_are_others_to_share_them_with(
    world_size, shards_weights, is_sharded, tmp_path: Path
) -> None:
    found = on_ranks(world_size, who, tmp_path, shards_weights=shards_weights)
    assert found == [(rank, world_size, not is_sharded, is_sharded) for rank in range(world_size)]


def test_every_rank_hears_the_numbers_of_all_in_the_order_of_the_ranks(tmp_path: Path) -> None:
    heard = on_ranks(2, lambda ranks: ranks.all_gather_numbers([10 + ranks.rank, 7]), tmp_path)
    assert heard == [[[10, 7], [11, 7]]] * 2
    assert on_ranks(1, lambda ranks: ranks.all_gather_numbers([3]), tmp_path / "alone") == [[[3]]]


def test_ranks_on_one_machine_talk_over_the_loopback_interface_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interface(ranks: Ranks) -> str:
        return os.environ["GLOO_SOCKET_IFNAME"]

    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert on_ranks(1, interface, tmp_path / "found") == ["lo"]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,eth0")
    assert on_ranks(1, interface, tmp_path / "told") == ["lo,eth0"]


class Joining:
    """What a rank asks of torch as it joins, without a peer."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.met: dict[str, Any] = {}
        self.groups: list[dict[str, Any]] = []
        self.num_threads: list[int] = []
        patch.setattr(dist, "init_process_group", self._meet)
        patch.setattr(dist, "new_group", self._group)
        patch.setattr(torch, "set_num_threads", self.num_threads.append)
        # What a rank takes in is set for the whole process, which is this test's.
        patch.setattr(distributed_c10d, "_unpickler", distributed_c10d._unpickler)

    def _meet(self, backend: str, **inputs: Any) -> None:
        self.met = {"backend": backend, **inputs}

    def _group(self, **inputs: Any) -> Any:
        self.groups.append(inputs)
        return object()


@pytest.mark.parametrize(("inputs", "seconds"), [({}, 600), ({"timeout_s": 7.5}, 7.5)])
def test_a_rank_meets_its_peers_where_it_is_told_and_waits_as_long(monkeypatch, inputs, seconds) -> None:
    joining = Joining(monkeypatch)
    ranks = Ranks.join(rank=1, world_size=4, rendezvous="tcp://127.0.0.1:9999", num_threads=3, **inputs)
    assert joining.met == {
        "backend": "gloo", "init_method": "tcp://127.0.0.1:9999", "rank": 1, "world_size": 4,
        "timeout": timedelta(seconds=seconds),
    }  # fmt: skip
    assert joining.num_threads == [3] and joining.groups == [{"backend": "gloo"}] * 2
    assert (ranks.rank, ranks.world_size, ranks.device) == (1, 4, torch.device("cpu"))
    assert ranks.control is not ranks.saving, "the checkpoint's thread has collectives of its own"
    assert distributed_c10d._unpickler is values._ValueUnpickler


@pytest.mark.parametrize(("rank", "index"), [(1, 1), (6, 2)])
def test_ranks_share_out_the_gpus_of_their_machine(monkeypatch: pytest.MonkeyPatch, rank, index) -> None:
    joining, chosen, in_one_order = Joining(monkeypatch), list[torch.device](), list[bool]()
    monkeypatch.setattr(torch, "use_deterministic_algorithms", in_one_order.append)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    for name in ("CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    ranks = Ranks.join(rank=rank, world_size=8, rendezvous="tcp://127.0.0.1:9999", num_threads=1)
    assert [ranks.device] == chosen == [torch.device("cuda", index)]
    assert joining.met["backend"] == "cpu:gloo,cuda:nccl"
    assert joining.groups == [{"backend": "gloo"}] * 2, "numbers and checkpoints leave NCCL alone"
    workspaces = os.environ.pop("CUBLAS_WORKSPACE_CONFIG"), os.environ.pop("CUBLASLT_WORKSPACE_SIZE")
    assert in_one_order == [True] and workspaces == (":16:8", "1"), "a product has no room to split its sums"
    is_filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    assert not is_filled, "which costs a pass over each new tensor"


def test_who_has_left_can_meet_others(tmp_path: Path) -> None:
    def twice(ranks: Ranks) -> bool:
        ranks.leave()
        has_left = not dist.is_initialized()
        Ranks.join(rank=0, world_size=1, rendezvous=f"file://{tmp_path}/again", num_threads=1)
        return has_left

    assert on_ranks(1, twice, tmp_path / "first") == [True]
