"""Our losses and gradients are TRL's: on one batch, to what the arithmetic of 32 bits explains.

`golden/` holds what TRL 1.16 computed (`renew.py` writes it anew); where TRL can be imported, it is asked.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from agreement.cases import CASES
from agreement.measured import Measured, apart

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", CASES)
def test_a_loss_and_its_gradient_are_those_that_trl_computed(name: str, tmp_path: Path) -> None:
    found = apart(CASES[name].ours(tmp_path), Measured.load(GOLDEN / f"{name}.safetensors"))
    assert found.agree, found


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", CASES)
def test_trl_itself_agrees(name: str, tmp_path: Path, requires: Callable[[str, bool, str], None]) -> None:
    reason = "not installed here (make .venv-bench-trl/.installed, and run the tests with that Python)"
    requires("trl", importlib.util.find_spec("trl") is not None, reason)
    found = apart(CASES[name].ours(tmp_path / "ours"), CASES[name].trl(tmp_path / "trl"))
    assert found.agree, found


def test_another_loss_does_not_agree(tmp_path: Path) -> None:
    found = apart(CASES["dpo-robust"].ours(tmp_path), Measured.load(GOLDEN / "dpo-sigmoid.safetensors"))
    assert not found.agree
