"""Appends the git commit to the version of a build, 1.0.0+g3f2a91c, so that two builds of one release differ.

An image is built without git: the Containerfile takes the commit as a build argument and passes it in ASSAY_COMMIT.
"""

import os
import subprocess

from setuptools import setup

DESCRIBE = ("git", "describe", "--always", "--dirty=.dirty", "--abbrev=7", "--exclude=*")


def commit() -> str:
    """Return the commit of the sources; empty if they are in no git repository."""
    if given := os.environ.get("ASSAY_COMMIT"):
        return given
    try:
        return subprocess.run(DESCRIBE, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


stamp = commit()
setup(options={"egg_info": {"tag_build": f"+g{stamp}"}} if stamp else {})
