"""`assay check resume` on the scripts of tests/resume_scripts: it finds each planted fault, and nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(1800)  # a check starts a script a dozen times, on a machine that may be busy
SCRIPTS = Path(__file__).parents[1] / "resume_scripts"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "{workers}"]
FAULTS = {
    "skips_the_tail": "rows",
    "trains_the_prefetch_twice": "rows",
    "restarts_the_epoch": "rows",
    "restores_no_optimizer": "optimizer",
    "restores_no_scheduler": "learning_rate",
    "restores_no_generator": "randomness",
    "picks_a_torn_checkpoint": "torn",
    "overwrites_the_last_good_one": "kept",
    "saves_before_the_step": "moment",
    "exits_0_on_failure": "exit_code",
    "deadlocks_on_sigterm": "sigterm",
    "picks_by_name": "newest",
    "ignores_its_flag": "resumes",
}
SHOWN_BY = {"torn": "save", "kept": "save", "exit_code": "sigterm", "sigterm": "sigterm"}
"""Property -> the exercise that shows it; by default the kill between two saves."""
GRACE_S = 40
"""On a busy machine, Python takes long to end."""


def check(*words: str, options: list[str], tmp_path: Path) -> tuple[int, dict[str, Any], str]:
    """Return the exit code, what was found, and what was printed."""
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "assay", "check", "resume", "--json", f"--page={page}", *options, "--", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def failing(found: dict[str, Any]) -> set[str]:
    return {name for name, result in found["properties"].items() if result["status"] == "fails"}


@pytest.mark.parametrize(
    "script",
    [pytest.param(name, marks=() if name == "trains_the_prefetch_twice" else pytest.mark.slow) for name in FAULTS],
)
@pytest.mark.parametrize("tries", ["one", pytest.param("all", marks=pytest.mark.soak)])
def test_a_planted_fault_is_found_and_no_other(script: str, tries: str, tmp_path: Path) -> None:
    name = FAULTS[script]
    exercises = [f"--exercises={SHOWN_BY.get(name, 'step')}"] if tries == "one" else []
    grace = 10 if name == "sigterm" else GRACE_S
    words = [sys.executable, str(SCRIPTS / f"{script}.py"), "{out}"]
    code, found, printed = check(*words, options=[*exercises, f"--grace={grace}"], tmp_path=tmp_path)
    assert (code, failing(found)) == (1, {name}), printed
    assert name in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    "exercises",
    [
        pytest.param(["--exercises=step,workers"], marks=pytest.mark.slow, id="two"),
        pytest.param([], marks=pytest.mark.soak, id="all"),
    ],
)
def test_another_order_at_another_world_size_is_found_and_nothing_else(exercises: list[str], tmp_path: Path) -> None:
    words = [*TORCHRUN, str(SCRIPTS / "changes_the_order.py"), "{out}"]
    options = ["--workers=1,2", f"--grace={GRACE_S}", *exercises]
    code, found, printed = check(*words, options=options, tmp_path=tmp_path)
    assert (code, failing(found)) == (1, {"order"}), printed
    assert found["properties"]["order"]["exercise"] == "workers"


@pytest.mark.slow
def test_an_exact_script_holds_to_the_bit(tmp_path: Path) -> None:
    words = [sys.executable, str(SCRIPTS / "exact.py"), "{out}"]
    code, found, printed = check(*words, options=["--exercises=step,again,workers"], tmp_path=tmp_path)
    assert (code, failing(found)) == (0, set()), printed
    assert found["notes"] == [
        "again: not tried, because the resume has the same command.",
        "workers: not tried, because --workers has one number.",
    ]
    assert printed.splitlines()[:3] == ["undisturbed ...", "undisturbed, again ...", "SIGKILL between two saves ..."]
    assert "first command" not in printed and "world size" not in printed, "what is not tried is not announced"
    properties = found["properties"]
    assert properties["weights"] == {"status": "holds", "seen": "equal to the bit", "exercise": "step"}
    (exercise,) = found["exercises"]
    assert (exercise["stopped_step"], exercise["resumed_step"], exercise["exit_codes"]) == (16, 15, [-9, 0])


RIGHT = {
    "exact": [sys.executable, str(SCRIPTS / "exact.py"), "{out}"],
    "exact_ddp": [*TORCHRUN, str(SCRIPTS / "exact_ddp.py"), "{out}"],
    "exact_trainer": [sys.executable, str(SCRIPTS / "exact_trainer.py"), "{out}"],
}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("script", "times"),
    [pytest.param("exact", 1, marks=pytest.mark.slow)]
    + [pytest.param(script, 10, marks=pytest.mark.soak) for script in RIGHT],
)
def test_a_right_script_passes_every_exercise(script: str, times: int, tmp_path: Path) -> None:
    sizes = ["--workers=1,2"] if script == "exact_ddp" else []
    for _ in range(times):
        code, found, printed = check(
            *RIGHT[script], options=[*sizes, f"--grace={GRACE_S}", "--force"], tmp_path=tmp_path
        )
        assert found, printed
        assert (code, failing(found)) == (0, set()), (found, printed)


@pytest.mark.slow
def test_the_first_command_given_again_overwrites_checkpoints(tmp_path: Path) -> None:
    words = [sys.executable, str(SCRIPTS / "ignores_its_flag.py"), "{out}"]
    again = f"--resume-command={sys.executable} {SCRIPTS / 'exact.py'} {{out}}"
    code, found, printed = check(*words, options=[again, "--exercises=step,again"], tmp_path=tmp_path)
    assert (code, failing(found)) == (1, {"kept"}), printed
    assert found["properties"]["kept"]["seen"] == "the first command overwrote step-15.pt"


def left_processes(marker: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and marker.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def script_file(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / f"script_{tmp_path.name}.py"
    path.write_text(text)
    return [sys.executable, str(path), "{out}"]


TRAIN = """
import sys, torch
weight = torch.nn.Linear(8, 1)  # of another value at each start
optimizer = torch.optim.SGD(weight.parameters(), lr=0.1)
for step in range(4):
    weight(torch.full((2, 8), float(step))).sum().backward()
    optimizer.step()
"""
UNUSABLE = {
    "fails": (
        "raise SystemExit('no data')",
        [],
        "Undisturbed, the script ended with exit code 1: no data",
    ),
    "socket": (
        "import os, socket; socket.socket(socket.AF_UNIX).bind(f\"{os.environ['TMPDIR']}/{'s' * 67}\"); "
        "raise SystemExit('a socket as deep as those of Ray')",
        [],
        "ended with exit code 1: a socket as deep as those of Ray",
    ),
    "silent": ("raise SystemExit(3)", [], "ended with exit code 3, and printed nothing"),
    "endless": (
        "import time; time.sleep(600)",
        ["--timeout=3"],
        "did not end within --timeout, and printed nothing. Give it more",
    ),
    "no_training": ("print('done')", [], "no step of a torch optimizer was seen"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_script_that_cannot_be_checked_is_refused_with_what_to_do(name: str, tmp_path: Path) -> None:
    text, options, message = UNUSABLE[name]
    words = script_file(tmp_path, text)
    code, found, printed = check(*words, options=options, tmp_path=tmp_path)
    assert (code, found) == (2, {})
    assert message in printed
    assert left_processes(words[1]) == []


def test_a_command_without_its_output_folder_is_refused_before_it_runs(tmp_path: Path) -> None:
    words = script_file(tmp_path, f"open({str(tmp_path / 'ran')!r}, 'w')")
    code, _, printed = check(*words[:2], options=[], tmp_path=tmp_path)
    assert code == 2 and "has no {out}" in printed
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_a_script_that_never_saves_fails_to_resume(tmp_path: Path) -> None:
    code, found, _ = check(*script_file(tmp_path, TRAIN), options=[], tmp_path=tmp_path)
    assert (code, failing(found)) == (1, {"resumes"})
    assert "no checkpoint, in 4 steps" in found["properties"]["resumes"]["seen"]


def test_a_file_outside_of_the_output_folder_is_not_written(tmp_path: Path) -> None:
    users = tmp_path / "precious.pt"
    users.write_text("the user's")
    words = script_file(tmp_path, TRAIN + f"torch.save(1, {str(users)!r})\n")
    code, _, printed = check(*words, options=[], tmp_path=tmp_path)
    assert code == 2 and f"tried to write {users}" in printed
    assert users.read_text() == "the user's"


DAEMON = """
if sys.argv[-1] != "daemon":
    import subprocess, os
    subprocess.Popen([sys.executable, __file__, "daemon"], start_new_session=True)
    torch.save(weight.state_dict(), sys.argv[1] + "/last.pt")
else:
    import time; time.sleep(600)
"""


@pytest.mark.slow
def test_a_daemon_is_named_and_ended(tmp_path: Path) -> None:
    words = script_file(tmp_path, TRAIN + DAEMON)
    code, found, _ = check(*words, options=[], tmp_path=tmp_path)
    assert code == 1 and "daemon" in found["properties"]["processes"]["seen"]
    assert left_processes(words[1]) == []


OTHER_NAMES = """
import os, time
folder = f"{sys.argv[1]}/run-{time.time_ns()}"
os.mkdir(folder)
for step in range(4):
    weight(torch.full((2, 8), float(step))).sum().backward()
    optimizer.step()
    torch.save(weight.state_dict(), f"{folder}/{step}.pt")
"""


@pytest.mark.slow
def test_a_script_with_other_files_at_each_start_is_said_to_be_one(tmp_path: Path) -> None:
    words = script_file(tmp_path, TRAIN + OTHER_NAMES)
    code, found, _ = check(*words, options=["--exercises=step"], tmp_path=tmp_path)
    assert (code, failing(found)) == (1, {"resumes"})
    assert "started from nothing" in found["properties"]["resumes"]["seen"]
    assert "each start saves under other names, such as run-" in found["properties"]["resumes"]["seen"]


TWO_NAMES = """
import os, shutil, sys, torch
model = torch.nn.Linear(2, 1)
torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
start, last = 0, sys.argv[1] + "/last.pt"
if os.path.exists(last):
    start, weights = torch.load(last)
    model.load_state_dict(weights)
for step in range(start, 6):
    model(torch.full((2, 2), float(step))).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 2:
        torch.save((step + 1, model.state_dict()), f"{sys.argv[1]}/{step}.pt")
        shutil.copyfile(f"{sys.argv[1]}/{step}.pt", last)
"""


@pytest.mark.slow
def test_a_checkpoint_under_two_names_is_cut_under_both(tmp_path: Path) -> None:
    words = script_file(tmp_path, TWO_NAMES)
    code, found, printed = check(*words, options=["--exercises=damaged"], tmp_path=tmp_path)
    assert (code, failing(found)) == (0, set()), printed
    assert found["properties"]["torn"]["seen"].startswith("refused by exit code 1")


@pytest.mark.slow
def test_saves_that_are_copied_from_elsewhere_cannot_be_damaged_and_it_is_said(tmp_path: Path) -> None:
    copied = TWO_NAMES + '        os.remove(f"{sys.argv[1]}/{step}.pt")\n'
    code, found, printed = check(
        *script_file(tmp_path, copied), options=["--exercises=step,damaged"], tmp_path=tmp_path
    )
    assert (code, failing(found)) == (0, set()), printed
    assert found["properties"]["newest"]["status"] == "unseen"
    assert "damaged: not tried, because no save was seen whole after the kill." in found["notes"]
    forgetful = copied.replace("if os.path.exists(last)", "if False")
    code, found, printed = check(*script_file(tmp_path, forgetful), options=["--exercises=step"], tmp_path=tmp_path)
    assert (code, failing(found)) == (1, {"resumes"}), printed
    assert "started from nothing, though step 4 was saved" in found["properties"]["resumes"]["seen"]


NOISE = """
import os, sys, torch, assay
torch.seed()
path = sys.argv[1] + "/last.pt"
model = torch.nn.Linear(2, 1)
torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
start = 0
if os.path.exists(path):
    start, weights = torch.load(path)
    model.load_state_dict(weights)
for step in range(start, 8):
    OBSERVE
    (0 * FORWARD + model.bias).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.save((step + 1, model.state_dict()), path + ".new")
    os.replace(path + ".new", path)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "forward", "seen"),
    [
        ("pass", "model(torch.randn(2, 2))", "two undisturbed runs trained different rows; set the seeds, or call"),
        ("pass", "model.bias", "the model's input could not be read; call assay.observe(rows=...)"),
        ("assay.observe(rows=[2 * step])", "model(torch.randn(2, 2))", "8 rows in 8 steps"),
    ],
    ids=["random", "none", "named"],
)
def test_rows_that_cannot_be_seen_are_named_in_one_line(line: str, forward: str, seen: str, tmp_path: Path) -> None:
    words = script_file(tmp_path, NOISE.replace("OBSERVE", line).replace("FORWARD", forward))
    code, found, printed = check(*words, options=["--exercises=step"], tmp_path=tmp_path)
    assert code == 0, printed
    assert found["properties"]["rows"]["status"] == ("unseen" if line == "pass" else "holds")
    assert seen in found["properties"]["rows"]["seen"]


def test_a_check_that_is_ended_leaves_no_process(tmp_path: Path) -> None:
    words = script_file(tmp_path, f"open({str(tmp_path / 'started')!r}, 'w').close(); import time; time.sleep(600)")
    command = [sys.executable, "-m", "assay", "check", "resume", "--", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as checking:
        while not (tmp_path / "started").exists():
            assert checking.poll() is None
        checking.terminate()
        checking.communicate()
    assert checking.returncode == 128 + 15
    assert left_processes(words[1]) == []
