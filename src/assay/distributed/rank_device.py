"""The device of a rank, and torch's description of it.

Only what torch reports is recorded: a rank on a CPU has no serial number and no CUDA version.
"""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch

from assay.records.processor import CUBLAS_WORKSPACE
from assay.records.rank_device import RankDevice

Precision = Literal["auto", "float32", "bfloat16"]


def device_of(rank: int = 0) -> torch.device:
    """Return the rank's GPU with deterministic kernels, or the CPU if torch sees no GPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    _add_in_one_order()
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Return the autocast context of a forward pass."""
    is_bfloat16 = precision == "bfloat16" or (
        precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported()
    )
    return torch.autocast(device.type, torch.bfloat16) if is_bfloat16 else nullcontext()


def _add_in_one_order() -> None:
    """Use deterministic kernels: spot checks, replays and restarts recompute lanes and need the same bits.

    By default CUDA kernels add in the order in which threads arrive (attention's backward pass, `index_add`),
    and cuBLAS chooses kernels by the available workspace, which the processor's record holds.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)
    os.environ.setdefault("CUBLASLT_WORKSPACE_SIZE", "1")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def rank_device(device: torch.device) -> RankDevice:
    """Return the device's description; NCCL's version is that of the loaded library."""
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
    """Return the device's UUID in the format of the driver's tools; empty if torch has none."""
    uuid = str(getattr(properties, "uuid", "")).removeprefix("GPU-")
    return f"GPU-{uuid}" if uuid.strip("0-") else ""


def version_text(numbers: Sequence[int | str]) -> str:
    """Return e.g. `2.27.3` for the numbers of `torch.cuda.nccl.version()`; a suffix is kept (`2.27.3-rc1`)."""
    suffix = "".join(f"-{str(number).lstrip('-')}" for number in numbers[3:])
    return ".".join(map(str, numbers[:3])) + suffix
