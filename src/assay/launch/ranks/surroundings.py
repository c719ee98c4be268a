"""What this process's ranks run in: read once per attempt, from files and variables, without torch."""

import getpass
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from assay.records.surroundings import Surroundings

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


def surroundings_here(variables: Mapping[str, str] | None = None, *, driver: Path = DRIVER) -> Surroundings:
    """What is around this process, or what the variables and the driver's file say that are given."""
    known = os.environ if variables is None else variables
    job = known.get("SLURM_JOB_ID", "")
    return Surroundings(
        python=platform.python_version(),
        kernel=platform.release(),
        driver=_driver(driver),
        image=next((known[name] for name in IMAGES if known.get(name)), ""),
        user=_user(),
        place="slurm" if job else "machine",
        job=job,
        partition=known.get("SLURM_JOB_PARTITION", ""),
    )


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
