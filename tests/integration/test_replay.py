"""Steps of real runs of several ranks, run again on one process."""

import json
from pathlib import Path

import pytest

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.cli.main import main
from assay.elastic.capsules import capsules, nearest_commit, save_capsule
from assay.elastic.supervisor import RestartPolicy, Supervisor
from assay.store.commit_log import CommitLog
from assay.store.metrics.recorded import recorded_steps
from assay.store.objects import open_store
from assay.training.replay.request import ReplayRequest


def replayed(capfd, *arguments: object, code: int = 0) -> dict:
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["runs", "replay", *map(str, arguments), "--json"])
    assert ended.value.code == code
    return json.loads(capfd.readouterr().out)


@pytest.fixture(scope="module")
def one_short_run(run_here, tmp_path_factory):
    """Four steps of one rank."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_HOME", str(tmp_path_factory.mktemp("short")))
        yield run_here(trainer__max_steps=4)[0]


def test_a_step_of_four_ranks_comes_out_bit_for_bit_on_one(run_it, capfd) -> None:
    run, _, _ = run_it(world_sizes=(4, 2), kills=[(1, 3)], trainer__spot_check_every=5)
    lane = max(recorded_steps(Path(run.run_dir))[15].lane_digests)
    report = replayed(capfd, run.run_id, "--step", 15, "--lane", lane, "--through", 16)
    assert report["verdict"] == "equal"
    quantities = {(item["step"], item["quantity"]) for item in report["at_step"]}
    exact = ("loss", "gradient_norm", "gradient_digest", "weights_digest", f"lane {lane} gradient_digest")
    assert {(15, name) for name in exact} <= quantities
    assert (16, "loss") in quantities


@pytest.mark.slow
def test_a_spot_check_of_sharded_weights_records_the_digests_of_whole_ones(new_tiny_run, capfd) -> None:
    run = new_tiny_run(trainer__spot_check_every=5, trainer__max_steps=5)
    policy = RestartPolicy(parallel=("fsdp2",))
    log = CommitLog(open_store(run.store_url))
    Supervisor(run, log, policy=policy, observers=[], clock=SystemClock()).run(4)
    lanes = recorded_steps(Path(run.run_dir))[5].lane_digests
    assert len(lanes) == 4
    for lane in sorted(lanes)[:2]:
        report = replayed(capfd, run.run_id, "--step", 5, "--lane", lane)
        assert report["verdict"] == "equal"
        quantities = {item["quantity"] for item in report["at_step"]}
        assert {f"lane {lane} gradient_digest", "gradient_digest", "weights_digest"} <= quantities


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--attempt", 7), "--attempt 7 --step 3: it has no step on record"),
        (("--through", 2), "--through 2: it must be from --step 3 to 4"),
        (("--through", 9), "--through 9: it must be from --step 3 to 4"),
    ],
)
def test_what_can_not_be_compared_is_refused_by_name(one_short_run, options, words, capfd) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["runs", "replay", one_short_run.run_id, "--step", "3", *map(str, options)])
    assert (ended.value.code, words in capfd.readouterr().err) == (2, True)


def test_an_attempt_is_compared_with_up_to_the_step_it_died_in(one_short_run, capfd) -> None:
    recorded = recorded_steps(Path(one_short_run.run_dir))
    died_in_5 = {step: created for step, created in recorded.items() if step < 5}
    ReplayRequest(step=5, attempt=1).check_attempt(died_in_5)
    with pytest.raises(ConfigError, match="it ran steps 1 to 4"):
        ReplayRequest(step=6, attempt=1).check_attempt(died_in_5)


def test_a_step_whose_record_is_another_differs_and_is_called_wrong_arithmetic(run_it, capfd) -> None:
    run, _, _ = run_it(trainer__max_steps=6)
    (segment,) = Path(run.run_dir).glob("metrics/attempt-0001/rank-00000.seg")
    flip_last_bit_of_a_loss(segment, run, step=4)
    report = replayed(capfd, run.run_id, "--step", 5, "--explain", code=1)
    assert report["verdict"] == "differs"
    assert (report["first_difference"]["step"], report["first_difference"]["quantity"]) == (4, "loss")
    assert report["explanation"]["cause"] == "wrong arithmetic"


def flip_last_bit_of_a_loss(segment: Path, run, *, step: int) -> None:
    import struct
    import zlib

    value = struct.pack("<d", recorded_steps(Path(run.run_dir))[step].values["loss"])
    data = bytearray(segment.read_bytes())
    location = data.index(value)
    data[location] ^= 1
    start = location - 32  # crc, size, kind, id; step; moment; the loss is the first number
    (size,) = struct.unpack_from("<I", data, start + 4)
    struct.pack_into("<I", data, start, zlib.crc32(data[start + 4 : start + size]))
    segment.write_bytes(data)


@pytest.mark.slow
def test_a_capsule_outlives_retention_and_a_replay_begins_there(run_it, new_tiny_run, capfd) -> None:
    run, log, _ = run_it(retention__keep_best=0)
    assert [commit.step for commit in log.commits()] == [15, 20]
    capsule = save_capsule(run, log, step=17, reason="a test")
    assert sum(map(len, capsule.rows)) == 32
    newest = log.commits()[0]
    for file in newest.files:
        (Path(run.run_dir) / newest.folder / file.path).unlink()
    assert capsules(log.store) == [capsule]
    assert nearest_commit(log, 17) == capsule.commit
    report = replayed(capfd, run.run_id, "--step", 17)
    assert (report["verdict"], report["from_step"]) == ("equal", 15)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--step", "0"), "the run has the steps 1 to 3"),
        (("--step", "1", "--lane", "8"), "the run has the lanes 0 to 7"),
        (("--step", "1", "--watch", "--audit-ops"), "give one of them"),
    ],
)
def test_what_can_not_be_replayed_is_said(new_tiny_run, capfd, arguments, message: str) -> None:
    run = new_tiny_run(trainer__max_steps=3)
    with pytest.raises(SystemExit) as ended:
        main(["runs", "replay", run.run_id, *arguments])
    assert ended.value.code == 2
    assert message in capfd.readouterr().err
