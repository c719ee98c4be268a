"""Sends a signed message to a client-chosen URL, safe against SSRF.

    URL --resolve once--> addresses --all public, or the host is allowed--> connect to one of these addresses

The connection uses the checked addresses, so DNS rebinding has no effect. Redirects and proxies are not followed, and
the response body is not read.
"""

import base64
import hashlib
import hmac
import http.client
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import NamedTuple
from urllib.parse import urlsplit

from assay.base.errors import AssayError

TIMEOUT_S = 10.0
"""Limit of a whole attempt."""
MAX_URL = 2048
_SHOWN = 200
_DEFAULT_PORTS = {"https": 443, "http": 80}

Resolve = Callable[[str, int], Sequence[str]]
"""(host, port) -> addresses."""


class AddressError(AssayError):
    """A forbidden address; a retry does not help."""


class NotDeliveredError(AssayError):
    """A failed delivery; a retry may succeed."""


class Target(NamedTuple):
    """A parsed URL."""

    scheme: str
    host: str
    port: int
    path: str


def target_of(url: str, allowed_hosts: Sequence[str]) -> Target:
    """Parse a URL. Raises `AddressError` if it is invalid or not allowed."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise AddressError(f"{url!r:.120} is not a URL: {error}.") from None
    host = parts.hostname or ""
    if len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise AddressError(f"A webhook's URL may have up to {MAX_URL} printable ASCII characters.")
    if parts.scheme not in _DEFAULT_PORTS or not host or parts.fragment or "@" in parts.netloc:
        raise AddressError(f"{url!r:.120} is not a URL like https://HOST/PATH without user and fragment.")
    if parts.scheme == "http" and not _is_listed(host, allowed_hosts):
        raise AddressError(
            f"{url!r:.120}: a webhook's URL must begin with https://. If the operator lists its host "
            "(webhook_hosts in settings.yaml), http:// is allowed."
        )
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port or _DEFAULT_PORTS[parts.scheme], path)


def addresses_of(target: Target, allowed_hosts: Sequence[str], resolve: Resolve) -> list[str]:
    """Return the addresses to connect to. Raises `AddressError` if one is not public.

    `allowed_hosts`: hosts, addresses and networks (`10.0.0.0/8`) that the operator allows.
    """
    try:
        found = list(resolve(target.host, target.port))
    except OSError as error:
        raise NotDeliveredError(f"{target.host} cannot be resolved: {error}.") from error
    for address in found:
        if not (_is_public(address) or _is_listed(target.host, allowed_hosts) or _is_listed(address, allowed_hosts)):
            raise AddressError(
                f"{target.host} is {address}, which is not public, so nothing is sent there. To allow it, "
                "add it to webhook_hosts in settings.yaml."
            )
    return found


def resolved(host: str, port: int) -> list[str]:
    """Resolve a host."""
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


def post(
    url: str, body: str, headers: dict[str, str], allowed_hosts: Sequence[str], resolve: Resolve = resolved
) -> int:
    """Send a message; return the response status. Raises `AddressError` or `NotDeliveredError`."""
    target = target_of(url, allowed_hosts)
    addresses = addresses_of(target, allowed_hosts, resolve)
    try:
        with closing(_connected(addresses, target.port)) as connected:
            watch = threading.Timer(TIMEOUT_S, _cut, [connected])
            watch.start()
            try:
                return _exchange(target, connected, body, headers)
            finally:
                watch.cancel()
    except (OSError, http.client.HTTPException) as error:
        text = str(error) or type(error).__name__
        raise NotDeliveredError(f"{target.host}: {text[:_SHOWN]}") from error


def signed_headers(message_id: str, body: str, secrets: Sequence[str], *, now_s: float) -> dict[str, str]:
    """Return headers with signatures by each secret, in the Standard Webhooks format."""
    timestamp = str(int(now_s))
    signed = f"{message_id}.{timestamp}.{body}".encode()
    signatures = [
        base64.b64encode(hmac.new(_key_of(secret), signed, hashlib.sha256).digest()).decode() for secret in secrets
    ]
    return {
        "content-type": "application/json",
        "user-agent": "assay-webhooks",
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }


def _exchange(target: Target, connected: socket.socket, body: str, headers: dict[str, str]) -> int:
    connection: http.client.HTTPConnection
    if target.scheme == "https":
        connected = ssl.create_default_context().wrap_socket(connected, server_hostname=target.host)
        connection = http.client.HTTPSConnection(target.host, target.port)
    else:
        connection = http.client.HTTPConnection(target.host, target.port)
    connection.sock = connected  # connected to the checked address, with the URL's host name
    with closing(connection):
        connection.request("POST", target.path, body.encode(), headers)
        return connection.getresponse().status


def _connected(addresses: Sequence[str], port: int) -> socket.socket:
    error: OSError = OSError("it has no address")
    for address in addresses:
        try:
            return socket.create_connection((address, port), TIMEOUT_S)
        except OSError as refused:
            error = refused
    raise error


def _cut(connected: socket.socket) -> None:
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)


def _is_public(address: str) -> bool:
    found = _innermost(ipaddress.ip_address(address.partition("%")[0]))
    return found.is_global and not found.is_multicast


_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def _innermost(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the IPv4 address that an IPv6 address embeds, if any."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo[1] if address.teredo else None
    return address.ipv4_mapped or address.sixtofour or teredo or address


def _is_listed(host: str, allowed_hosts: Sequence[str]) -> bool:
    for entry in allowed_hosts:
        if entry.lower() == host.lower():
            return True
        with suppress(ValueError):
            if ipaddress.ip_address(host.partition("%")[0]) in ipaddress.ip_network(entry):
                return True
    return False


def _key_of(secret: str) -> bytes:
    return base64.b64decode(secret.removeprefix("whsec_"))
