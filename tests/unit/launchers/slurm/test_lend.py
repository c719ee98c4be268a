import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from assay.base.errors import ConfigError
from assay.cli.main import cli
from assay.elastic.nodes.server import LEADER_FILE, LeaderAddress
from assay.launchers.slurm.launcher import SlurmConfig
from assay.launchers.slurm.lend import lend, lend_script
from assay.records.run import Run
from assay.store.home import Home

CONFIG = SlurmConfig(nodes=3, partition="low", time="2-0", sbatch=("--gpus-per-node=8",))


@pytest.fixture
def run(run: Run) -> Run:
    """It is led on nodes of two ranks."""
    Path(run.run_dir).mkdir(parents=True)
    address = LeaderAddress(host="n1", port=1, ranks_per_node=2)
    Path(run.run_dir, LEADER_FILE).write_text(address.model_dump_json())
    return run


def test_each_node_is_a_job_of_its_own_with_room_for_the_ranks_of_a_node(run: Run, tmp_path: Path) -> None:
    lines = lend_script(Home.at(tmp_path / "the runs"), run, CONFIG).splitlines()
    request = {line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")}
    assert request >= {
        "--array=1-3",
        "--nodes=1",
        "--ntasks-per-node=1",
        "--cpus-per-task=6",
        "--partition=low",
        "--time=2-0",
        "--signal=TERM@120",
        "--requeue",
        "--gpus-per-node=8",
    }
    assert "--job-name=assay-join-long" in request, "it is not taken for a job that trains the run"


@pytest.mark.parametrize(("code", "requeued"), [(75, True), (143, True), (0, False), (1, False), (2, False)])
def test_a_job_whose_node_was_taken_back_lends_another(
    run: Run, tmp_path: Path, programs: Callable[..., None], code: int, requeued: bool
) -> None:
    programs(
        sbatch=f'echo 12; cp "$2" {tmp_path}/submitted',
        srun=f'echo "$*" > {tmp_path}/ran; exit {code}',
        scontrol=f'echo "$*" > {tmp_path}/said',
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        assert lend(Home.at(tmp_path / "the runs"), run, CONFIG) == "12"
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "13"}
    done = subprocess.run(["bash", tmp_path / "submitted"], env=environment)
    assert done.returncode == (0 if requeued else code)
    assert (tmp_path / "ran").read_text().endswith("assay train join long\n")
    assert (tmp_path / "said").exists() == requeued


def test_a_run_that_takes_in_no_nodes_is_refused_before_anything_is_submitted(run: Run, tmp_path: Path) -> None:
    Path(run.run_dir, LEADER_FILE).unlink()
    with pytest.raises(ConfigError, match="accepts no nodes now"):
        lend(Home.at(tmp_path / "the runs"), run, CONFIG)
    assert not Path(run.run_dir, "slurm").exists()


def test_an_option_of_slurm_needs_slurm(run: Run) -> None:
    Path(run.run_dir, "run.json").write_text(run.to_json())
    response = CliRunner().invoke(cli, ["train", "join", "long", "--nodes", "2"])
    assert response.exit_code == 2
    assert "--nodes is an option of Slurm: add '--on slurm'" in response.output
