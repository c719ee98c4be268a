"""The version of the running code: the package's version and, in a checkout, the git commit."""

from functools import cache
from pathlib import Path


@cache
def code_version() -> str:
    """Return `0.1.0+g3f2a91c`, with `.dirty` where files differ from the commit; `0.1.0` outside a checkout."""
    # Imported here: every command imports this module, and few need the version.
    import subprocess
    from importlib.metadata import version

    package = version("assay")
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=.dirty", "--abbrev=7", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return package
    return f"{package}+g{described}"
