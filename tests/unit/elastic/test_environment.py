"""What an attempt ran in, read from variables and the driver's file."""

import platform
from pathlib import Path

import pytest

from assay.elastic.environment import environment_here, with_devices, with_hosts
from assay.records.rank_device import RankDevice
from assay.records.run import Attempt
from machine import MACHINE

VERSION = """NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024
GCC version:  gcc version 12.3.0
"""
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build  (dvs-builder@U16)\n"


@pytest.mark.parametrize(("text", "driver"), [(VERSION, "550.54.15"), (OPEN, "560.35.03"), ("?", ""), (None, "")])
def test_the_driver_is_the_one_that_is_loaded(tmp_path: Path, text: str | None, driver: str) -> None:
    file = tmp_path / "version"
    if text is not None:
        file.write_text(text)
    found = environment_here({}, driver=file)
    assert (found.driver, found.python, found.kernel) == (driver, platform.python_version(), platform.release())
    assert (found.launcher, found.job, found.partition, found.image) == ("machine", "", "", "")


def test_a_job_says_where_it_is_and_the_plainest_name_of_an_image_counts() -> None:
    job = {"SLURM_JOB_ID": "12", "SLURM_JOB_PARTITION": "low", "APPTAINER_CONTAINER": "/images/a.sif"}
    found = environment_here(job)
    assert (found.launcher, found.job, found.partition, found.image) == ("slurm", "12", "low", "/images/a.sif")
    assert environment_here({**job, "ASSAY_IMAGE": "train:7"}).image == "train:7"
    assert environment_here({**job, "ASSAY_IMAGE": ""}).image == "/images/a.sif"


HERE = environment_here({"ASSAY_IMAGE": "train:7"})
OTHER = HERE.model_copy(update={"driver": "550.54.15"})
STARTED = Attempt(
    run_id="r",
    attempt=1,
    world_size=3,
    start_step=0,
    started_s=0.0,
    environment=HERE,
    code_version=MACHINE["code_version"],
    folder=MACHINE["folder"],
    processor=MACHINE["processor"],
)


def test_what_another_node_has_is_on_record_where_it_is_not_what_the_first_has() -> None:
    attempt = with_hosts(STARTED, ["a", "b", "c"], {"b": HERE, "c": OTHER, "lost": OTHER})
    assert (attempt.hosts, attempt.environment) == (("a", "b", "c"), HERE)
    assert attempt.other_environments == {"c": OTHER}


def test_each_ranks_device_and_each_hosts_libraries_are_on_record() -> None:
    attempt = with_hosts(STARTED, ["a", "a", "c"], {"c": OTHER})
    output = [
        RankDevice("cuda:0", "GPU-1", "12.8", "2.27.3"),
        RankDevice("cuda:1", "GPU-2", "12.8", "2.27.3"),
        RankDevice("cuda:0", "GPU-3", "12.8", "2.26.2"),
    ]
    ended = with_devices(attempt, output)
    assert (ended.devices, ended.serials) == (("cuda:0", "cuda:1", "cuda:0"), ("GPU-1", "GPU-2", "GPU-3"))
    assert ended.environment == HERE.model_copy(update={"cuda": "12.8", "nccl": "2.27.3"})
    assert ended.other_environments == {"c": OTHER.model_copy(update={"cuda": "12.8", "nccl": "2.26.2"})}


def test_what_no_rank_said_is_not_guessed() -> None:
    attempt = with_hosts(STARTED, ["a", "a", "c"], {})
    dead = with_devices(attempt, [RankDevice(), RankDevice("cuda:1", "GPU-2", "12.8", "2.27.3"), RankDevice()])
    assert (dead.devices, dead.serials) == (("", "cuda:1", ""), ("", "GPU-2", ""))
    assert dead.environment is not None and dead.environment.cuda == "12.8"  # of its host's other rank
    assert dead.other_environments == {"c": HERE}  # whose rank said nothing
    on_cpus = with_devices(attempt, [RankDevice("cpu")] * 3)
    assert (on_cpus.devices, on_cpus.serials) == (("cpu",) * 3, ())
    assert (on_cpus.environment, on_cpus.other_environments) == (HERE, {})
