"""The environment that ranks run in: driver, image, user, job. Read once per attempt and node, without torch.

Ranks report their device and its CUDA and NCCL versions themselves, because only torch knows them.
"""

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
"""Variables that name a container's image; the first one that is set counts."""
DRIVER = Path("/proc/driver/nvidia/version")


def environment_here(variables: Mapping[str, str] | None = None, *, driver: Path = DRIVER) -> NodeEnvironment:
    """Return the environment of this process, or of the given variables and driver file."""
    known = os.environ if variables is None else variables
    job = known.get("SLURM_JOB_ID", "")
    return NodeEnvironment(
        python=platform.python_version(),
        kernel=platform.release(),
        driver=_driver(driver),
        image=next((known[name] for name in IMAGES if known.get(name)), ""),
        user=_user(),
        launcher="slurm" if job else "kubernetes" if "KUBERNETES_SERVICE_HOST" in known else "machine",
        job=job,
        partition=known.get("SLURM_JOB_PARTITION", ""),
    )


def with_hosts(attempt: Attempt, hosts: Sequence[str], nodes: Mapping[str, NodeEnvironment]) -> Attempt:
    """Return the attempt with the hosts of its ranks, and the environments that differ from the first host's."""
    first = attempt.environment
    other_environments = {host: nodes[host] for host in dict.fromkeys(hosts) if nodes.get(host, first) != first}
    return attempt.model_copy(update={"hosts": tuple(hosts), "other_environments": other_environments})


def with_devices(attempt: Attempt, devices: Sequence[RankDevice]) -> Attempt:
    """Return the attempt with the devices and serial numbers that its ranks reported.

    Each host's CUDA and NCCL versions are those of its first rank that reports them.
    """
    found: dict[str, object] = {
        "devices": tuple(device.name for device in devices),
        "serials": tuple(device.serial for device in devices) if any(device.serial for device in devices) else (),
    }
    first, versions = attempt.environment, dict[str, dict[str, str]]()
    for host, device in zip(attempt.hosts, devices, strict=True):
        if device.cuda:
            versions.setdefault(host, {"cuda": device.cuda, "nccl": device.nccl})
    if versions:
        environments = {
            host: attempt.other_environments.get(host, first).model_copy(update=versions.get(host, {}))
            for host in dict.fromkeys(attempt.hosts)
        }
        first = environments.pop(attempt.hosts[0])
        other_environments = {host: other for host, other in environments.items() if other != first}
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
    except (KeyError, OSError):  # in a container, the user id may have no name
        return str(os.getuid())
