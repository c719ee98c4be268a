"""What a process computes on, and what torch says of it: which of all that there are, and what drives it.

Only what torch says is said: a rank on a CPU has no serial number, and no CUDA that could be at fault.
"""

import os
from collections.abc import Sequence
from typing import Any

import torch

from assay.records.rank_device import RankDevice


def device_of(rank: int = 0) -> torch.device:
    """The GPU that the rank has among those of its machine, in kernels that add in one order; a CPU where torch
    sees none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    _add_in_one_order()
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _add_in_one_order() -> None:
    """A lane is made again by spot checks, by replays and after a death, and has to have the same bits.

    CUDA's usual kernels add in whichever order threads arrive (attention's backward pass, `index_add`), and
    cuBLAS goes by the memory that it finds.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def rank_device(device: torch.device) -> RankDevice:
    """All of it; NCCL is asked for what is loaded, which need not be what torch was built with."""
    if device.type != "cuda":
        return RankDevice(str(device))
    return RankDevice(
        name=str(device),
        serial=serial_of(torch.cuda.get_device_properties(device)),
        cuda=torch.version.cuda or "",
        nccl=version_text(_nccl_version()) if torch.distributed.is_nccl_available() else "",
    )


def _nccl_version() -> Any:
    return torch.cuda.nccl.version()  # type: ignore[no-untyped-call]


def serial_of(properties: object) -> str:
    """The UUID of a device's properties, as the driver's tools write it; empty where torch has none."""
    uuid = str(getattr(properties, "uuid", "")).removeprefix("GPU-")
    return f"GPU-{uuid}" if uuid.strip("0-") else ""


def version_text(numbers: Sequence[int | str]) -> str:
    """`2.27.3`, of the numbers that `torch.cuda.nccl.version()` gives; a suffix stays one (`2.27.3-rc1`)."""
    suffix = "".join(f"-{str(number).lstrip('-')}" for number in numbers[3:])
    return ".".join(map(str, numbers[:3])) + suffix
