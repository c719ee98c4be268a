"""What nodes that come and go cost is measured on a real cluster."""

import pytest

from scale_nodes import SETTING, turn


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_node_leaves_and_another_joins_and_both_are_timed(netns) -> None:
    """Two nodes; a restart takes more than a step, and less than the whole run so far."""
    setting = SETTING._replace(workers=2, nodes=2, lanes=4, gradient_bytes=100_000)
    found = turn(setting)
    assert 0.05 < found.leaving < 60
    assert 0.05 < found.joining < found.joining_since_up < 60
