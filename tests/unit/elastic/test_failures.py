"""Which kind an exception is of, and when two are alike."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.base.errors import (
    AssayError,
    ConfigError,
    DamagedDataError,
    DataError,
    FencedError,
    LossNotFiniteError,
    StoreError,
    StoreFullError,
    TrainingError,
)
from assay.elastic.failures import distance_from_cause, kind_of, last_phase, signature_of
from assay.records.failure import Failure
from assay.records.suspect import WrongArithmeticError
from assay.store.heartbeat import Beat

SOURCE = """
def outer(fail):
    inner(fail)
def inner(fail):
    fail()
def other(fail):
    inner(fail)
def recursive(fail, depth):
    recursive(fail, depth - 1) if depth else fail()
"""


def caught(function: str, message: str, *, error=ValueError, padding=0, path="/a.py", depth=0) -> BaseException:
    """What a module of ours raised, with so many lines above its code, from a file of that name."""
    module = {"__name__": "assay.made.up"}
    exec(compile("\n" * padding + SOURCE, path, "exec"), module)

    def fail() -> None:  # not of ours
        raise error(message)

    try:
        module[function](fail, *([depth] if function == "recursive" else []))
    except error as found:
        return found
    raise AssertionError


anything = {
    "message": st.text(),
    "padding": st.integers(0, 50),
    "path": st.sampled_from(("/a.py", "/home/x/b.py", "<made>")),
}


@given(one=st.fixed_dictionaries(anything), other=st.fixed_dictionaries(anything))
def test_the_same_mistake_has_one_signature_whatever_it_says_and_wherever_its_file_lies(one, other) -> None:
    assert signature_of(caught("outer", **one)) == signature_of(caught("outer", **other))


def test_a_signature_names_the_class_and_the_innermost_functions_of_ours() -> None:
    assert signature_of(caught("outer", "x")) == "ValueError in made.up.inner < made.up.outer"


def test_another_class_or_another_caller_is_another_signature() -> None:
    found = [
        caught("outer", "x"),
        caught("outer", "x", error=KeyError),
        caught("other", "x"),
        caught("inner", "x"),
    ]
    assert len({signature_of(error) for error in found}) == 4


@given(depth=st.integers(0, 30))
def test_how_deep_a_recursion_went_makes_no_difference(depth: int) -> None:
    assert signature_of(caught("recursive", "x", depth=depth)) == "ValueError in made.up.recursive"


def test_what_was_raised_outside_our_code_is_known_by_its_class() -> None:
    assert signature_of(ValueError("never raised")) == "ValueError"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (WrongArithmeticError("x", ()), "wrong_arithmetic"),
        (LossNotFiniteError("x"), "loss_not_finite"),
        (DamagedDataError("x"), "damaged_data"),
        (DataError("x"), "data_error"),
        (ConfigError("x"), "config_error"),
        (StoreError("x"), "store_unreachable"),
        (StoreFullError("x"), "disk_full"),
        (FencedError("x"), "fenced"),
        (TrainingError("x"), "refused"),
        (AssayError("x"), "refused"),
        (MemoryError(), "out_of_memory"),
        (torch.OutOfMemoryError("x"), "out_of_memory"),
        (torch.distributed.DistNetworkError("x"), "peer_lost"),
        (torch.distributed.DistBackendError("x"), "peer_lost"),
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]:4242"), "peer_lost"),
        (RuntimeError("shapes do not match"), "exception"),
        (ValueError("Connection closed by peer, says a person"), "exception"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_every_error_has_its_kind(error: BaseException, kind: str) -> None:
    assert kind_of(error) == kind


def test_memory_that_torch_can_not_allocate_is_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(1 << 58, dtype=torch.uint8)
    assert kind_of(refused.value) == "out_of_memory"


def test_a_rank_is_in_the_update_after_its_last_one_or_nowhere_before_its_first_sign_of_life() -> None:
    assert last_phase(Beat(6, "data", 99.0, 0.0, 0.0)) == ("data", 7)
    assert last_phase(Beat(0, "startup", 0.0, 0.0, 0.0)) == last_phase(None) == ("startup", None)


def test_the_cause_is_an_error_with_a_name_before_a_surprise_and_never_a_peers_complaint() -> None:
    kinds = ["peer_lost", "exception", "data_error"]
    failures = [Failure(failure_kind=kind, run_id="r", attempt=1, signature="s", text="") for kind in kinds]
    assert sorted(failures, key=distance_from_cause) == failures[::-1]
