"""What nodes that come and go cost is measured on a real cluster."""

import pytest

from network_links import missing
from scale_nodes import SETTING, turn


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_node_leaves_and_another_joins_and_both_are_timed(requires) -> None:
    """Two nodes; a restart takes more than a step, and less than the whole run so far."""
    reason = missing()
    requires("netns", reason is None, f"{reason}; Debian's package iproute2, and root in a container that may")
    setting = SETTING._replace(workers=2, nodes=2, lanes=4, gradient_bytes=100_000)
    found = turn(setting)
    assert 0.05 < found.leaving < 60
    assert 0.05 < found.joining < found.joining_since_up < 60
