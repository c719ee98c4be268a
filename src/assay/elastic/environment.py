"""What ranks run in: read once per attempt and node, from files and variables, without torch; and what each
rank says of its own device, which only torch knows."""

import getpass
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from assay.records.node_environment import NodeEnvironment
from assay.records.rank_device import RankDevice
from assay.records.run import Attempt

IMAGES = (
    "ASSAY_IMAGE",
    "APPTAINER_CONTAINER",
    "SINGULARITY_CONTAINER",
    "SLURM_CONTAINER",
    "ENROOT_ROOTFS",
    "CONTAINER_IMAGE",
)
"""Variables that name a container's image, the plainest first."""
DRIVER = Path("/proc/driver/nvidia/version")


def environment_here(variables: Mapping[str, str] | None = None, *, driver: Path = DRIVER) -> NodeEnvironment:
    """What is around this process, or what the variables and the driver's file say that are given."""
    known = os.environ if variables is None else variables
    job = known.get("SLURM_JOB_ID", "")
    return NodeEnvironment(
        python=platform.python_version(),
        kernel=platform.release(),
        driver=_driver(driver),
        image=next((known[name] for name in IMAGES if known.get(name)), ""),
        user=_user(),
        launcher="slurm" if job else "machine",
        job=job,
        partition=known.get("SLURM_JOB_PARTITION", ""),
    )


def with_hosts(attempt: Attempt, hosts: Sequence[str], nodes: Mapping[str, NodeEnvironment]) -> Attempt:
    """An attempt whose ranks were started: on which hosts, and what those of `nodes` have around them, where
    that is not what the first has."""
    first = attempt.environment
    other_environments = {host: nodes[host] for host in dict.fromkeys(hosts) if nodes.get(host, first) != first}
    return attempt.model_copy(update={"hosts": tuple(hosts), "other_environments": other_environments})


def with_devices(attempt: Attempt, devices: Sequence[RankDevice]) -> Attempt:
    """An attempt with what its ranks said: devices, their serial numbers, and of each host the versions of CUDA
    and NCCL that the first of its ranks to know them has."""
    found: dict[str, object] = {
        "devices": tuple(device.name for device in devices),
        "serials": tuple(device.serial for device in devices) if any(device.serial for device in devices) else (),
    }
    first, versions = attempt.environment, dict[str, dict[str, str]]()
    for host, device in zip(attempt.hosts, devices, strict=True):
        if device.cuda:
            versions.setdefault(host, {"cuda": device.cuda, "nccl": device.nccl})
    if versions:
        around = {
            host: attempt.other_environments.get(host, first).model_copy(update=versions.get(host, {}))
            for host in dict.fromkeys(attempt.hosts)
        }
        first = around.pop(attempt.hosts[0])
        other_environments = {host: device for host, device in around.items() if device != first}
        found |= {"environment": first, "other_environments": other_environments}
    return attempt.model_copy(update=found)


def _driver(file: Path) -> str:
    try:
        found = re.search(r"Kernel Module.*?(\d+(?:\.\d+)+)", file.read_text())
    except OSError:
        return ""
    return found[1] if found else ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user of a container that has no name
        return str(os.getuid())
