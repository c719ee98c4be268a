"""What a rank says of the device that it computes on, once it has met the others: on its way to the attempt."""

from typing import NamedTuple


class RankDevice(NamedTuple):
    """A text is empty where torch does not say it, and for a rank that has said nothing yet."""

    name: str = ""
    """Among those of its process, e.g. `cuda:3`; or `cpu`."""
    serial: str = ""
    """What goes with the device from host to host: a GPU's UUID, as `nvidia-smi` and Xid messages write it."""
    cuda: str = ""
    """Version of CUDA that torch was built with."""
    nccl: str = ""
    """Version of NCCL that torch has loaded."""
