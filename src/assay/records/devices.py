"""The cards that are known: what their makers' data sheets say of them, without sparsity, at the boost clock.

docs/shapes.md says which figures were compared with a copy of such a sheet, and which were not.
"""

from typing import NamedTuple


class DeviceSheet(NamedTuple):
    """A card's data sheet."""

    multiprocessors: int
    bf16_flops: float
    """Dense products in bfloat16 with float32 sums, per second."""
    float32_flops: float
    """Products in float32 without tensor cores, per second."""
    memory_bytes_per_s: float
    memory_bytes: float
    link_bytes_per_s: float
    """To the other cards of its node in each direction: NVLink, or PCIe where there is none."""
    network_bytes_per_s: float | None
    """From the maker's own node of 8 cards to other nodes in each direction; None: the maker builds no such node."""
    source: str
    """The maker's data sheet, product brief or architecture paper of this product."""


_T, _G = 1e12, 1e9
_NODE_400, _NODE_200 = 8 * 50 * _G, 8 * 25 * _G
"""Eight adapters of 400 or 200 Gbit/s."""

DEVICES = {
    "B200": DeviceSheet(148, 2250 * _T, 80 * _T, 8000 * _G, 180 * _G, 900 * _G, _NODE_400, "NVIDIA Blackwell"),
    "H200": DeviceSheet(132, 989 * _T, 67 * _T, 4800 * _G, 141 * _G, 450 * _G, _NODE_400, "NVIDIA H200"),
    "GH200": DeviceSheet(132, 989 * _T, 67 * _T, 4000 * _G, 96 * _G, 450 * _G, None, "NVIDIA GH200"),
    "H100 PCIe": DeviceSheet(114, 756 * _T, 51 * _T, 2000 * _G, 80 * _G, 64 * _G, None, "NVIDIA H100 PCIe"),
    "H100 NVL": DeviceSheet(132, 835 * _T, 60 * _T, 3900 * _G, 94 * _G, 300 * _G, None, "NVIDIA H100 NVL"),
    "H100": DeviceSheet(132, 989 * _T, 67 * _T, 3350 * _G, 80 * _G, 450 * _G, _NODE_400, "NVIDIA H100"),
    "H800": DeviceSheet(132, 989 * _T, 67 * _T, 3350 * _G, 80 * _G, 200 * _G, _NODE_400, "NVIDIA H800"),
    "A100 40GB": DeviceSheet(108, 312 * _T, 19.5 * _T, 1555 * _G, 40 * _G, 300 * _G, _NODE_200, "NVIDIA A100 40GB"),
    "A100": DeviceSheet(108, 312 * _T, 19.5 * _T, 2039 * _G, 80 * _G, 300 * _G, _NODE_200, "NVIDIA A100 80GB"),
    "A800": DeviceSheet(108, 312 * _T, 19.5 * _T, 2039 * _G, 80 * _G, 200 * _G, _NODE_200, "NVIDIA A800"),
    "L40S": DeviceSheet(142, 362 * _T, 91.6 * _T, 864 * _G, 48 * _G, 32 * _G, None, "NVIDIA L40S"),
    "L40": DeviceSheet(142, 181 * _T, 90.5 * _T, 864 * _G, 48 * _G, 32 * _G, None, "NVIDIA L40"),
    "L4": DeviceSheet(58, 121 * _T, 30.3 * _T, 300 * _G, 24 * _G, 32 * _G, None, "NVIDIA L4"),
    "A10G": DeviceSheet(80, 70 * _T, 35 * _T, 600 * _G, 24 * _G, 32 * _G, None, "AWS G5 instances"),
    "A10": DeviceSheet(72, 125 * _T, 31.2 * _T, 600 * _G, 24 * _G, 32 * _G, None, "NVIDIA A10"),
    "A30": DeviceSheet(56, 165 * _T, 10.3 * _T, 933 * _G, 24 * _G, 100 * _G, None, "NVIDIA A30"),
    "A40": DeviceSheet(84, 150 * _T, 37.4 * _T, 696 * _G, 48 * _G, 56 * _G, None, "NVIDIA A40"),
    "RTX 6000 Ada": DeviceSheet(142, 364 * _T, 91.1 * _T, 960 * _G, 48 * _G, 32 * _G, None, "NVIDIA RTX 6000 Ada"),
    "RTX A6000": DeviceSheet(84, 155 * _T, 38.7 * _T, 768 * _G, 48 * _G, 56 * _G, None, "NVIDIA RTX A6000"),
    "RTX 4090": DeviceSheet(128, 165 * _T, 82.6 * _T, 1008 * _G, 24 * _G, 32 * _G, None, "NVIDIA Ada"),
    "RTX 3090": DeviceSheet(82, 71 * _T, 35.6 * _T, 936 * _G, 24 * _G, 56 * _G, None, "NVIDIA GA102"),
    "MI300X": DeviceSheet(304, 1307 * _T, 163.4 * _T, 5300 * _G, 192 * _G, 448 * _G, None, "AMD MI300X"),
}  # fmt: skip
"""Words of a card's name -> its data sheet. A name that contains another one stands before it."""


def find_device(card: str) -> str | None:
    """Return the name of a card in `DEVICES`, by the name that its driver reports or a user types; None if it is not
    listed."""
    words = set(card.lower().replace("-", " ").replace("_", " ").split())
    return next((name for name in DEVICES if words.issuperset(name.lower().split())), None)


def dense_bf16_flops(card: str) -> float | None:
    """Return a card's rate in bfloat16 by the name that its driver reports; None if it is not listed."""
    name = find_device(card)
    return None if name is None else DEVICES[name].bf16_flops
