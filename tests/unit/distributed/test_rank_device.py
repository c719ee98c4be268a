"""What torch says of a device, in the words that it has for it."""

from types import SimpleNamespace

import pytest
import torch

from assay.distributed.rank_device import rank_device, serial_of, version_text
from assay.records.rank_device import RankDevice

UUID = "5b2f1c3e-7a90-1d4c-8e6f-0a1b2c3d4e5f"
"""As `str(torch.cuda.get_device_properties(0).uuid)` has it; `nvidia-smi -L` writes GPU- before it."""


def test_a_rank_on_a_cpu_has_no_serial_number_and_no_cuda() -> None:
    assert rank_device(torch.device("cpu")) == RankDevice("cpu")


@pytest.mark.parametrize(
    ("properties", "serial"),
    [
        (SimpleNamespace(uuid=UUID), f"GPU-{UUID}"),
        (SimpleNamespace(uuid=f"GPU-{UUID}"), f"GPU-{UUID}"),
        (SimpleNamespace(uuid="00000000-0000-0000-0000-000000000000"), ""),
        (SimpleNamespace(name="a device of a torch that has no UUIDs"), ""),
    ],
)
def test_a_serial_number_is_what_the_drivers_tools_print_or_nothing(properties: object, serial: str) -> None:
    assert serial_of(properties) == serial


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((2, 27, 3), "2.27.3"), ((2, 30, 0, "rc1"), "2.30.0-rc1"), ((2, 30, 0, "-rc1"), "2.30.0-rc1")],
)
def test_a_version_is_written_as_people_write_it(numbers: tuple[int | str, ...], text: str) -> None:
    assert version_text(numbers) == text


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_rank_on_a_gpu_says_which_one_it_is() -> None:
    message = rank_device(torch.device("cuda", 0))
    assert message.name == "cuda:0" and message.serial.startswith("GPU-")
    assert message.cuda == torch.version.cuda and message.nccl.startswith("2.")


def test_a_rank_on_a_gpu_says_all_that_torch_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 3)
    seen = {gpu: SimpleNamespace(uuid=UUID)}
    monkeypatch.setattr(torch.cuda, "get_device_properties", seen.__getitem__)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr("assay.distributed.rank_device._nccl_version", lambda: (2, 27, 3))
    for exists, nccl in ((True, "2.27.3"), (False, "")):
        monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda exists=exists: exists)
        assert rank_device(gpu) == RankDevice("cuda:3", f"GPU-{UUID}", "13.0", nccl)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert rank_device(gpu).cuda == ""
