"""Finds the network interface by which this machine reaches another; gloo needs its name.

By default gloo uses the address of the machine's host name, which on many installations is 127.0.1.1: ranks on
other nodes then connect to themselves.
"""

import fcntl
import socket
import struct

from assay.base.errors import ConfigError

LOOPBACK = "lo"
_SIOCGIFADDR = 0x8915
_ADDRESS_IN_REPLY = slice(20, 24)


def interface_to(host: str | None) -> str:
    """Return the interface with the IPv4 address that packets to `host` have; the loopback one without a host."""
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
