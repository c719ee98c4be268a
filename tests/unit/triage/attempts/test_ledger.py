"""assay's own attempts as a table: what each ran on and with, and what is another name for something else."""

from collections.abc import Sequence

from assay.records.node_environment import NodeEnvironment
from assay.records.run import Attempt, Run
from assay.triage.attempts.ledger import columns_of_attempts
from machine import MACHINE

AROUND = NodeEnvironment(
    python="3.12", kernel="6.8", driver="550.54", image="", user="me", launcher="slurm", job="1", partition="low"
)


def attempt(number: int, **fields: object) -> Attempt:
    whole = {"run_id": f"r{number}", "attempt": 1, "world_size": 2, "start_step": 0, "outcome": "succeeded"}
    return Attempt(**whole, started_s=float(number), ended_s=float(number + 1), **(MACHINE | fields))


def on(number: int, host: str, *devices: tuple[str, str]) -> Attempt:
    """With a device and its serial number for each rank."""
    devices, serials = zip(*devices, strict=True)
    return attempt(number, hosts=(host,) * len(devices), devices=devices, serials=serials)


def cells(attempts: Sequence[Attempt], name: str) -> list[str | None]:
    """A column of the table of some attempts; nothing where it is no factor."""
    runs = [
        Run(
            run_id=item.run_id, created_s=0.0, recipe={"seed": 1}, recipe_sha256="", code_version="1",
            dataset_fingerprint="d" * 64, run_dir="/r", store_url="memory:", num_steps=10,
        )
        for item in attempts
    ]  # fmt: skip
    columns, _ = columns_of_attempts(runs, attempts)
    return columns.table[name].to_pylist() if name in columns.factors else []


def test_a_device_that_was_moved_is_a_factor_by_its_serial_number() -> None:
    first = [on(k, "a", ("cuda:0", "GPU-1"), ("cuda:1", "GPU-2")) for k in range(3)]
    moved = [on(3 + k, "b", ("cuda:0", "GPU-3"), ("cuda:1", "GPU-2")) for k in range(3)]
    found = cells([*first, *moved], "serial")
    assert found == ["GPU-2"] * 6, "GPU-1 and GPU-3 are other names for their hosts"


def test_devices_that_take_turns_in_one_place_are_told_by_their_numbers() -> None:
    """A scheduler that gives each job one GPU calls all of them cuda:0."""
    found = cells([on(k, "a", ("cuda:0", f"GPU-{k % 2}")) for k in range(4)], "serial")
    assert found == ["GPU-0", "GPU-1", "GPU-0", "GPU-1"]


def test_a_serial_number_that_is_another_name_for_a_place_is_no_factor() -> None:
    whole = [on(k, f"n{k % 2}", ("cuda:0", f"GPU-{k % 2}0"), ("cuda:1", f"GPU-{k % 2}1")) for k in range(6)]
    assert cells(whole, "serial") == []
    halves = [on(k, "a", (f"cuda:{k % 2}", f"GPU-{k % 2}")) for k in range(6)]
    assert cells(halves, "serial") == [] and cells(halves, "device") == ["a/cuda:0", "a/cuda:1"] * 3


def test_what_nodes_differ_in_are_several_values_and_what_is_not_on_record_is_none() -> None:
    new = AROUND.model_copy(update={"driver": "560.35", "cuda": "12.8", "nccl": "2.27.3"})
    attempts = [
        attempt(0, hosts=("a", "b"), environment=AROUND, other_environments={"b": new}),
        attempt(1, hosts=("a", "a"), environment=new),
        attempt(2),
    ]
    assert cells(attempts, "driver") == ["550.54|560.35", "560.35", None]
    assert cells(attempts, "cuda") == ["12.8", "12.8", None]
    assert cells(attempts, "nccl") == ["2.27.3", "2.27.3", None]
    assert cells(attempts, "kernel") == ["6.8", "6.8", "6.1"]
