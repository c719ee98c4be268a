"""The version of the running code: the package's version and the git commit, of the checkout or of the build."""

from functools import cache
from pathlib import Path


@cache
def code_version() -> str:
    """Return `1.0.0+g3f2a91c`, with `.dirty` where files differed from the commit; `1.0.0` if nobody knows it.

    Only a checkout of assay itself counts: a wheel may be installed inside the checkout of something else.
    """
    # Imported here: every command imports this module, and few need the version.
    import subprocess
    from importlib.metadata import distribution

    def git(*arguments: str) -> str:
        command, here = ["git", *arguments], Path(__file__).parent
        return subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    installed = distribution("assay")  # setup.py has appended the commit of the build
    release = installed.version.partition("+")[0]
    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return f"{release}+g{git('describe', '--always', '--dirty=.dirty', '--abbrev=7', '--exclude=*')}"
    except (OSError, subprocess.SubprocessError):
        # The files of an editable installation may have changed since it was installed.
        is_editable = '"editable": true' in (installed.read_text("direct_url.json") or "")
        return release if is_editable else installed.version
