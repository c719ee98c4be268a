"""The server of the ranks begins before it is known what is trained, and ends where that comes to nothing."""

import os
from multiprocessing import forkserver
from typing import Any

import pytest

from assay.base.errors import ConfigError
from assay.launch.ranks.fork_server import begun_at_once


def server_pid() -> int | None:
    server: Any = forkserver._forkserver
    pid: int | None = server._forkserver_pid
    return pid


def test_a_mistake_ends_the_server_at_once_and_another_may_begin() -> None:
    pids = []
    for _ in range(2):
        with pytest.raises(ConfigError), begun_at_once():
            pids.append(server_pid())
            raise ConfigError("a recipe that cannot work")
        assert server_pid() is None
    for pid in pids:
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert len(set(pids)) == 2


def test_without_a_mistake_it_serves_on() -> None:
    try:
        with begun_at_once():
            began = server_pid()
        assert server_pid() == began is not None
    finally:
        with pytest.raises(ConfigError), begun_at_once():
            raise ConfigError("it is not needed any more")
