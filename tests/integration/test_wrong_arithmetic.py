"""A flipped bit in one rank's gradient, planted below torch's dispatcher in real processes."""

import json
import socket
from pathlib import Path

import pytest
import yaml

from variants import soaked


@pytest.fixture
def flipping(planted_assay, tmp_path: Path):
    """Bits flip in rank 1's gradients from step 5 on, as long as its first process lives."""

    def plant(workers: int):
        calls_in_4_steps = 4 * 5 * 8 // workers
        # At the check of step 4 rank 1 makes a further lane, for another rank.
        planted_assay.plant(
            "flipped_bit", FLIP_FROM_CALL=str(calls_in_4_steps + 6), FLIP_HAPPENED=str(tmp_path / "flipped")
        )
        return planted_assay

    return plant


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", *soaked("fsdp2")])
def test_a_rank_that_flips_bits_is_named_and_training_goes_back_to_the_last_verified_commit(
    parallel: str, flipping, undisturbed: str, tmp_path: Path
) -> None:
    assay = flipping(workers=4)
    # Time for the commit of step 6 to be written before the check of step 8 ends the attempt.
    pause = {"type": "slow", "rank": 0, "step": 7, "extra_s": 1.5, "num_steps": 1}
    (faults := tmp_path / "faults.yaml").write_text(yaml.safe_dump({"faults": [pause]}))
    options = ("--parallel", parallel, "--faults", str(faults))
    shown = assay.train("flipped", 4, *options, commit_every=2, spot_check_every=4)
    first, second = shown["attempts"]
    (suspect,) = first["suspects"]
    assert (suspect["rank"], suspect["node"], suspect["step"]) == (1, socket.gethostname(), 8)
    assert suspect["is_certain"]
    assert f"rank 1 on node {socket.gethostname()} (cpu)" in first["reason"]
    # The bits flip from step 5 on: the commit of step 6 holds them, and was not checked.
    entries = [json.loads(path.read_text()) for path in sorted((assay.home / "flipped" / "log").iterdir())]
    assert [entry["step"] for entry in entries if entry["type"] == "quarantine"] == [6]
    assert (first["end_step"], second["start_step"], second["suspects"]) == (4, 4, [])
    assert shown["weights_digest"] == undisturbed
    assert shown["audit"]["verdict"] == "pass"


@pytest.mark.slow
def test_without_spot_checks_nobody_knows_but_a_replay_finds_the_step(flipping, undisturbed: str) -> None:
    assay = flipping(workers=4)
    shown = assay.train("flipped", 4, "--parallel", "fsdp2", commit_every=2, spot_check_every=None)
    assert shown["status"] == "succeeded"
    assert [attempt["suspects"] for attempt in shown["attempts"]] == [[]]
    assert shown["weights_digest"] != undisturbed
    report = assay.replay("flipped", 9, "--explain", fails=True)
    assert report["verdict"] == "differs"
    assert report["first_difference"]["step"] in (5, 6)
    assert report["explanation"]["cause"] == "wrong arithmetic"
