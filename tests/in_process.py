"""The command `assay` in this process."""

import pytest

from assay.cli.main import main


def assay(*arguments: object) -> int:
    """Run the command; return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)
