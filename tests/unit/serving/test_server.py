import socket
import time

import pytest

from assay.base.errors import ConfigError
from assay.serving.server import listening, throttle
from clocks import ManualClock


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_answer_is_sent_in_pieces_without_waiting_for_a_client_to_acknowledge_each(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as plain:
        try:
            plain.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {host}")
    with listening(host, 0) as listener:
        address = listener.getsockname()[:2]
        with socket.create_connection(address) as client, listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            accepted.sendall(b"heard")
            assert client.recv(5) == b"heard"
        with pytest.raises(ConfigError, match=f"--port {address[1]}.*cannot listen"):
            listening(host, address[1])


def test_what_is_done_by_and_by_takes_a_fifth_of_the_time() -> None:
    clock = ManualClock(0.0)
    yield_cpu = throttle(clock)
    for _ in range(2):
        began_s, slept_s = time.thread_time(), clock.now_s()
        while time.thread_time() < began_s + 0.05:
            pass
        yield_cpu()
        assert 0.2 <= clock.now_s() - slept_s < 1.0
