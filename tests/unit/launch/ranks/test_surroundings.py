"""What an attempt ran in, read from variables and the driver's file."""

import platform
from pathlib import Path

import pytest

from assay.launch.ranks.surroundings import surroundings_here

VERSION = """NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024
GCC version:  gcc version 12.3.0
"""
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build  (dvs-builder@U16)\n"


@pytest.mark.parametrize(
    ("said", "driver"), [(VERSION, "550.54.15"), (OPEN, "560.35.03"), ("?", ""), (None, "")]
)
def test_the_driver_is_the_one_that_is_loaded(tmp_path: Path, said: str | None, driver: str) -> None:
    file = tmp_path / "version"
    if said is not None:
        file.write_text(said)
    found = surroundings_here({}, driver=file)
    assert (found.driver, found.python, found.kernel) == (driver, platform.python_version(), platform.release())
    assert (found.place, found.job, found.partition, found.image) == ("machine", "", "", "")


def test_a_job_says_where_it_is_and_the_plainest_name_of_an_image_counts() -> None:
    job = {"SLURM_JOB_ID": "12", "SLURM_JOB_PARTITION": "low", "APPTAINER_CONTAINER": "/images/a.sif"}
    found = surroundings_here(job)
    assert (found.place, found.job, found.partition, found.image) == ("slurm", "12", "low", "/images/a.sif")
    assert surroundings_here({**job, "ASSAY_IMAGE": "train:7"}).image == "train:7"
    assert surroundings_here({**job, "ASSAY_IMAGE": ""}).image == "/images/a.sif"
