"""By which network interface this machine reaches another: gloo wants its name.

Left alone, gloo takes the address that the machine's own name resolves to, which on many installations is
127.0.1.1: the ranks of other nodes then wait for an address that is their own.
"""

import fcntl
import socket
import struct

from assay.base.errors import ConfigError

LOOPBACK = "lo"
_SIOCGIFADDR = 0x8915
_ADDRESS_IN_REPLY = slice(20, 24)


def interface_to(host: str | None) -> str:
    """Name of the interface whose IPv4 address packets to `host` carry; without a host, the loopback one."""
    if not host:
        return LOOPBACK
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing: a datagram socket only learns its route
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            if _address_of(probe, name) == own:
                return name
    raise ConfigError(
        f"no interface of this machine has {own}, the address from which it reaches {host}. Name the one that "
        "reaches the other nodes: GLOO_SOCKET_IFNAME=eth0, say."
    )


def _address_of(probe: socket.socket, name: str) -> str | None:
    try:
        reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
    except OSError:  # an interface without an IPv4 address
        return None
    return socket.inet_ntoa(reply[_ADDRESS_IN_REPLY])
