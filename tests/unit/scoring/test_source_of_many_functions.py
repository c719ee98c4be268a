import time

import pytest

from assay.base.errors import ConfigError
from assay.scoring.python_process import check_source


def test_a_source_of_so_many_functions_that_compiling_takes_long_is_refused_quickly() -> None:
    began_s = time.monotonic()
    with pytest.raises(ConfigError, match="20,000 functions, classes and comprehensions; at most 4,000"):
        check_source("x=lambda:0\n" * 19_999 + "def grade(sample, item): return 1.0")
    assert time.monotonic() - began_s < 10.0
    check_source("x=lambda:0\n" * 2_000 + "def grade(sample, item): return 1.0")
