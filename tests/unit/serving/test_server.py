import socket

import pytest

from assay.base.errors import ConfigError
from assay.serving.server import listening


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
        with pytest.raises(ConfigError, match=f"--port {address[1]}.*cannot be listened on"):
            listening(host, address[1])
