import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from assay.base.errors import ConfigError
from assay.cli.main import cli
from assay.launchers.slurm.launcher import SlurmConfig, SlurmLauncher, job_text, stop
from assay.records.launch import Launch
from assay.records.run import Run
from assay.store.home import Home
from assay.training.recipe import recipe_of


def test_the_job_asks_for_what_was_chosen_and_goes_on_with_the_same_run(run: Run) -> None:
    config = SlurmConfig(nodes=2, partition="low", time="2-0", grace_s=300, sbatch=("--gpus-per-node=8",))
    lines = job_text(Home.from_environment(), run, config, world_size=4, options=("--max-restarts=3",)).splitlines()
    request = {line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")}
    assert request >= {
        "--nodes=2",
        "--ntasks-per-node=1",
        "--cpus-per-task=6",
        "--partition=low",
        "--time=2-0",
        "--signal=TERM@300",
        "--requeue",
        "--open-mode=append",
        "--gpus-per-node=8",
    }
    command = next(line for line in lines if "--resume" in line)
    expected = (
        "assay train --resume long --workers 4 --on nodes --workers-per-node 2 --wait-for-nodes 300 --max-restarts=3"
    )
    assert command.endswith(f"{expected} &")


def test_the_script_is_bash_whatever_the_folder_is_called(run: Run) -> None:
    script = job_text(Home.from_environment(), run, SlurmConfig(), world_size=1)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    home = next(line for line in script.splitlines() if line.startswith("export ASSAY_HOME"))
    printed = subprocess.run(
        ["bash", "-c", f'{home}; echo "$ASSAY_HOME"'], capture_output=True, text=True, check=True
    ).stdout
    assert printed.strip() == str(Path(run.run_dir).parent)


@pytest.mark.parametrize(
    "folder", ["a b", "it's", 'say "x"', "$(touch it-ran)", "`touch it-ran`", "100%j", "; touch it-ran #"]
)
def test_nothing_of_a_folders_name_is_run_and_sbatch_reads_it_whole(
    run: Run, tmp_path: Path, programs: Callable[..., None], folder: str
) -> None:
    run = run.model_copy(update={"run_id": folder, "run_dir": str(tmp_path / folder)})
    script = job_text(Home.at(tmp_path / folder), run, SlurmConfig(), world_size=1)
    programs(srun='printf "%s\\n" "$ASSAY_HOME" "$@" > read')
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    subprocess.run(["bash"], input=script, text=True, cwd=tmp_path, env=environment, check=True)
    read = (tmp_path / "read").read_text().splitlines()
    assert read[0] == str(tmp_path / folder)
    assert read[read.index("--resume") + 1] == folder
    assert not (tmp_path / "it-ran").exists()
    request = [shlex.split(line)[1:] for line in script.splitlines() if line.startswith("#SBATCH")]
    assert [f"--comment={tmp_path / folder}"] in request
    assert [f"--output={tmp_path / folder / 'slurm'}/job-%j.log".replace("100%j", "100%%j")] in request


@pytest.mark.parametrize("field", ["run_dir", "recipe"])
def test_a_line_break_that_would_be_a_line_of_the_script_is_refused(run: Run, tmp_path: Path, field: str) -> None:
    hostile = f"{tmp_path}/x\ntouch {tmp_path}/it-ran\n#"
    with pytest.raises((ConfigError, ValueError), match=r"cannot be written into a script|is not a valid name"):
        if field == "recipe":
            recipe_of(run.model_copy(update={"recipe": {**run.recipe, "name": hostile}}))
        else:
            bad = run.model_copy(update={"run_dir": hostile})
            job_text(Home.from_environment(), bad, SlurmConfig(), world_size=1)


def test_a_job_that_is_no_number_cancels_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: Callable[..., None]
) -> None:
    programs(scancel=f"touch {tmp_path}/it-ran")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ConfigError, match="is not a Slurm job id"):
        stop(
            Launch(
                run_id="r", number=1, launcher="slurm", job="--user=somebody", host="", started_by="",
                started_s=0.0, world_size=1, log="",
            )
        )  # fmt: skip
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.parametrize(("requeue", "code", "requeued"), [
    (True, 75, True), (True, 143, True),
    (True, 0, False), (True, 1, False), (True, 137, False), (False, 75, False),
])  # fmt: skip
def test_only_a_run_that_was_stopped_early_goes_back_into_the_queue(
    run: Run, tmp_path: Path, programs: Callable[..., None], requeue: bool, code: int, requeued: bool
) -> None:
    programs(srun=f"exit {code}", scontrol=f"echo $* > {tmp_path}/said")
    script = job_text(Home.from_environment(), run, SlurmConfig(requeue=requeue), world_size=1)
    done = subprocess.run(
        ["bash"], input=script, text=True, env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    )
    assert (tmp_path / "said").exists() == requeued
    assert done.returncode == (0 if requeued else code)
    if requeued:
        assert (tmp_path / "said").read_text() == "requeue 7\n"


def ran(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a job script with the programs of a folder."""
    step = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "3", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.5"}
    return subprocess.run(
        ["bash"], input=script, text=True, capture_output=True, env={"PATH": f"{folder}:/usr/bin:/bin", **step}
    )


@pytest.mark.parametrize(("code", "is_finished"), [(75, True), (137, True), (75, False), (0, True)])
def test_a_run_that_some_node_left_and_others_finished_is_not_requeued(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    programs: Callable[..., None],
    code: int,
    is_finished: bool,
) -> None:
    monkeypatch.setattr("assay.launchers.slurm.launcher.assay_program", lambda: str(tmp_path / "assay"))
    script = job_text(Home.from_environment(), run, SlurmConfig(nodes=4), world_size=4)
    audited, requeued = tmp_path / "audited", tmp_path / "requeued"
    audit = f"echo $* >> {audited}; exit {0 if is_finished else 3}"
    programs(srun=f"exit {code}", assay=audit, scontrol=f"touch {requeued}")
    done = ran(script, tmp_path)
    assert (done.returncode, requeued.exists()) == (0, not is_finished)
    assert not audited.exists() if code == 0 else audited.read_text() == "runs audit long --quick\n"


def task(command: str) -> str:
    """As srun on one node, with `command` in place of the program."""
    return f'while [ "$1" != bash ]; do shift; done; set -- "${{@:1:4}}" {command} "${{@:5}}"; exec "$@"'


def test_each_task_is_a_node_that_knows_its_index_and_where_the_lead_may_be(
    run: Run, tmp_path: Path, programs: Callable[..., None]
) -> None:
    script = job_text(Home.from_environment(), run, SlurmConfig(nodes=4), world_size=4)
    programs(srun=task("echo"))
    output = ran(script, tmp_path).stdout
    assert "train --resume long --workers 4 --on nodes" in output
    assert output.rstrip().endswith("--wait-for-nodes 300 --node 3 --lead 10.0.0.5")


@pytest.mark.parametrize(
    ("ends", "code"),
    [("exit 75", 75), ("kill -TERM $$", 143), ("kill -KILL $$", 1), ("kill -SEGV $$", 1), ("exit 2", 2), ("exit 0", 0)],
)
def test_a_killed_node_does_not_hide_the_higher_code_of_one_that_was_stopped_early(
    run: Run, tmp_path: Path, programs: Callable[..., None], ends: str, code: int
) -> None:
    """srun returns the highest code of all tasks."""
    script = job_text(Home.from_environment(), run, SlurmConfig(nodes=4, requeue=False), world_size=4)
    programs(srun=task(f"{tmp_path}/node"), node=ends)
    assert ran(script, tmp_path).returncode == code


def test_a_task_that_is_asked_to_stop_waits_for_its_node_and_returns_its_code(
    run: Run, tmp_path: Path, programs: Callable[..., None]
) -> None:
    """Slurm signals the process group of a task."""
    script = job_text(Home.from_environment(), run, SlurmConfig(nodes=4, requeue=False), world_size=4)
    leaves = "trap 'exit 75' TERM; kill -TERM $PPID; kill -TERM $$; sleep 5"
    programs(srun=task(f"{tmp_path}/node"), node=leaves)
    assert ran(script, tmp_path).returncode == 75


def test_a_node_without_a_rank_is_refused_and_one_with_more_than_others_gets_its_processors(run: Run) -> None:
    with pytest.raises(ConfigError, match=r"--nodes 3 --workers 2: .*Use --workers 3"):
        job_text(Home.from_environment(), run, SlurmConfig(nodes=3), world_size=2)
    lines = job_text(Home.from_environment(), run, SlurmConfig(nodes=3), world_size=4)
    assert "#SBATCH --cpus-per-task=6\n" in lines


@pytest.mark.parametrize(
    "wrong",
    [
        {"sbatch": ("exit 1",)},
        {"sbatch": ("--a\nrm",)},
        {"sbatch": ("--a\rrm",)},
        {"partition": "a b"},
        {"nodes": 0},
    ],
)
def test_what_is_no_option_of_sbatch_is_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SlurmConfig(**wrong)


def test_a_machine_without_slurm_is_one_clear_error(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"squeue: no such program.*login node"):
        SlurmLauncher(Home.from_environment(), SlurmConfig()).start(run, world_size=1)


def test_an_option_of_slurm_needs_slurm(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").touch()
    response = CliRunner().invoke(cli, ["train", str(tmp_path / "recipe.yaml"), "--grace", "5"])
    assert response.exit_code == 2
    assert "--grace needs --on slurm" in response.output
