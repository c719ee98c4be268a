"""Clusters behind slow links: what crosses them is what the closed forms say, in both halves."""

from pathlib import Path

import pytest

from assay.throughput.outer_steps import change_bytes
from assay.training.outer.config import OuterConfig
from network_links import linked_nodes
from outer_link import (
    NUM_WEIGHTS,
    STORE_RATE,
    Setting,
    Traffic,
    meeting_store,
    semi_synchronous,
    synchronous,
    write_recipe,
)

SETTING = Setting(
    clusters=2, rate="100mbit", every=4, bits=4, outer_steps=3, synchronous_steps=5, timeout_s=400.0
)  # fmt: skip
GRADIENT_BYTES = 4 * NUM_WEIGHTS
HEADERS = 1.3
"""At most this many bytes cross a link for each byte that is sent: headers, answers, and what is asked of the store."""


def test_bytes_between_two_looks_are_interpolated() -> None:
    traffic = Traffic([10.0, 12.0, 14.0], [[(0, 7), (0, 0)], [(100, 7), (10, 20)], [(200, 27), (10, 20)]])
    assert traffic.between(0, 11.0, 13.0) == pytest.approx((100.0, 10.0))
    assert traffic.between(1, 10.0, 14.0) == (10.0, 20.0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_half_moves_what_it_has_to(netns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_HOME", str(tmp_path / "home"))
    recipe = write_recipe(tmp_path)
    with linked_nodes(2, SETTING.rate, others=(STORE_RATE,)) as (*nodes, store):
        together = synchronous(recipe, nodes, SETTING)
        with meeting_store(tmp_path, store) as endpoint:
            apart = semi_synchronous(recipe, nodes, endpoint, SETTING)
    # Each of two ranks sends half of its gradient, and half of their sum.
    assert 1.0 <= together.sent_bytes / GRADIENT_BYTES <= HEADERS
    change = change_bytes(NUM_WEIGHTS, OuterConfig(every=SETTING.every)) / SETTING.every
    assert 1.0 <= apart.sent_bytes / change <= HEADERS
    assert 1.0 <= apart.received_bytes / change <= HEADERS
