"""Which code ran: the package's version, and the commit where it runs from a checkout."""

from functools import cache
from pathlib import Path


@cache
def code_version() -> str:
    """`0.1.0+g3f2a91c`, with `.dirty` where files differ from the commit; `0.1.0` outside a checkout."""
    # Here, for every command imports this module, and few ask.
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
