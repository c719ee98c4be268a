"""The loader in TRL's SFTTrainer, Lightning and torchtitan: kills and other numbers of ranks lose no row."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from host_scripts import EXAMPLES, OWN, killed_and_resized, undisturbed_steps

PACKAGES = {"sft_trainer": "trl", "lightning_fit": "lightning", "torchtitan_loader": "torchtitan"}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", PACKAGES)
def test_each_row_is_learned_once_an_epoch_in_the_undisturbed_order(
    name: str, tmp_path: Path, requires: Callable[[str, bool, str], None]
) -> None:
    requires("hosts", find_spec(PACKAGES[name]) is not None, f"{PACKAGES[name]} is not installed (make test-hosts)")
    attempts = killed_and_resized(EXAMPLES / f"{name}.py", tmp_path)
    assert attempts.faults() == {}
    trained = {step: sorted(rows) for step, rows in attempts.trained.items()}
    assert trained == undisturbed_steps(tmp_path / "data")


@pytest.mark.timeout(1800)
def test_each_pair_is_learned_once_an_epoch(tmp_path: Path, requires: Callable[[str, bool, str], None]) -> None:
    requires("hosts", find_spec("trl") is not None, "trl is not installed (make test-hosts)")
    attempts = killed_and_resized(EXAMPLES / "dpo_trainer.py", tmp_path)
    assert attempts.faults(rows=52) == {}
    chosen_and_rejected = undisturbed_steps(tmp_path / "data")
    assert {step: sorted(rows * 2) for step, rows in attempts.trained.items()} == chosen_and_rejected


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["sft_trainer", "lightning_fit"])
def test_the_hosts_own_loader_fails_the_same_test(
    name: str, tmp_path: Path, requires: Callable[[str, bool, str], None]
) -> None:
    requires("hosts", find_spec(PACKAGES[name]) is not None, f"{PACKAGES[name]} is not installed (make test-hosts)")
    assert killed_and_resized(OWN / f"{name}.py", tmp_path).faults() != {}


class Numbers(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from range(51)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata calls it
def test_torchtitans_own_loader_refuses_another_number_of_ranks(requires: Callable[[str, bool, str], None]) -> None:
    requires("hosts", find_spec("torchtitan") is not None, "torchtitan is not installed (make test-hosts)")
    from torchtitan.components.dataloader import ParallelAwareDataloader

    state = ParallelAwareDataloader(Numbers(), dp_rank=0, dp_world_size=2, batch_size=2).state_dict()
    with pytest.raises(AssertionError, match="resharding is not supported"):
        ParallelAwareDataloader(Numbers(), dp_rank=0, dp_world_size=1, batch_size=2).load_state_dict(state)
