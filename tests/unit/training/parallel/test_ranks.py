"""Who a rank is, in which groups it talks, and over which interface."""

import os
from pathlib import Path

import pytest

from assay.training.parallel.ranks import Ranks
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
    heard = on_ranks(2, lambda ranks: ranks.everyones([10 + ranks.rank, 7]), tmp_path)
    assert heard == [[[10, 7], [11, 7]]] * 2
    assert on_ranks(1, lambda ranks: ranks.everyones([3]), tmp_path / "alone") == [[[3]]]


def test_ranks_on_one_machine_talk_over_the_loopback_interface_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interface(ranks: Ranks) -> str:
        return os.environ["GLOO_SOCKET_IFNAME"]

    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert on_ranks(1, interface, tmp_path / "found") == ["lo"]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,eth0")
    assert on_ranks(1, interface, tmp_path / "told") == ["lo,eth0"]
