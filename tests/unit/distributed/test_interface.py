import socket

import pytest

from assay.base.errors import ConfigError
from assay.distributed import ranks
from assay.distributed.ranks import interface_to


@pytest.mark.parametrize("host", [None, "127.0.0.1", "localhost"])
def test_this_machine_is_reached_by_the_loopback_interface(host: str | None) -> None:
    assert interface_to(host) == "lo"


def test_an_address_that_no_interface_has_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_address_of", lambda probe, name: None)
    with pytest.raises(ConfigError, match=r"no interface.*127\.0\.0\.1.*GLOO_SOCKET_IFNAME"):
        interface_to("127.0.0.1")


def test_every_interface_of_this_machine_reaches_itself_by_its_own_name() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        addresses = {name: ranks._address_of(probe, name) for _, name in socket.if_nameindex()}
    assert {interface_to(address): address for address in addresses.values() if address} == {
        name: address for name, address in addresses.items() if address
    }
