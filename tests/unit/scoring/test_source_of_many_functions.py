import time

import pytest

from assay.base.errors import ConfigError
from assay.scoring.python_process import check_source


def test_a_source_of_so_many_functions_that_compiling_takes_long_is_refused_quickly() -> None:
    began_s = time.thread_time()
    with pytest.raises(ConfigError, match=r"20,000 functions, .* at most 4,000"):
        check_source("x=lambda:0\n" * 19_999 + "def grade(sample, item): return 1.0")
    assert time.thread_time() - began_s < 10.0
    check_source("x=lambda:0\n" * 2_000 + "def grade(sample, item): return 1.0")


def test_a_call_with_thousands_of_arguments_by_name_is_refused_before_it_is_compiled() -> None:
    began_s = time.thread_time()
    with pytest.raises(ConfigError, match=r"20,000 functions, .* at most 4,000"):
        check_source(f"x = dict({', '.join(f'a{number}=1' for number in range(20_000))})\n")
    assert time.thread_time() - began_s < 1.0


def test_half_of_a_character_in_a_source_is_no_python() -> None:
    with pytest.raises(ConfigError, match=r"not valid Python: .*surrogates not allowed"):
        check_source("x = '\ud800'\ndef grade(sample, item): return 1")
