"""The server of the ranks begins before it is known what is trained, and ends where that comes to nothing."""

import os
import signal
from collections.abc import Iterator
from multiprocessing import forkserver
from typing import Any

import pytest

from assay.base.errors import ConfigError
from assay.elastic.fork_server import started_at_once

SERVER: Any = forkserver._forkserver


@pytest.fixture(autouse=True)
def _none_before_and_after() -> Iterator[None]:
    SERVER._stop()
    yield
    if SERVER._forkserver_pid is not None:
        os.kill(SERVER._forkserver_pid, signal.SIGKILL)
        SERVER._stop()


def test_a_mistake_ends_the_server_at_once_and_another_may_begin() -> None:
    pids = []
    for _ in range(2):
        with pytest.raises(ConfigError), started_at_once():
            pids.append(SERVER._forkserver_pid)
            raise ConfigError("a recipe that cannot work")
        assert SERVER._forkserver_pid is None
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert len(set(pids)) == 2


def test_without_a_mistake_it_serves_on_and_a_later_mistake_leaves_it() -> None:
    with started_at_once():
        began = SERVER._forkserver_pid
    with pytest.raises(ConfigError), started_at_once():
        raise ConfigError("another recipe, that cannot work")
    assert SERVER._forkserver_pid == began is not None
    os.kill(began, 0)
