"""What several benchmarks' tests need."""

from collections.abc import Callable

import pytest

from network_links import missing


@pytest.fixture(scope="session")
def netns(requires: Callable[[str, bool, str], None]) -> None:
    """Network namespaces can be made here."""
    reason = missing()
    requires("netns", reason is None, f"{reason}; Debian's package iproute2, and root in a container that may")
