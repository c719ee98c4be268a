"""What a node prints is in its file when it ends, and is printed all the same."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = """
import subprocess, sys
from pathlib import Path
from assay.launchers.node_log import keep_output
keep_output(Path(sys.argv[1]))
print("on stdout", flush=True)
subprocess.run(["echo", "by a child"])
subprocess.Popen(["sleep", "20"])
sys.exit("the last line")
"""


def test_all_that_was_printed_is_kept_when_a_node_ends_though_a_child_lives_on(tmp_path: Path) -> None:
    file, printed = tmp_path / "new" / "node-0.log", tmp_path / "stdout"
    (slow := tmp_path / "tee").write_text(f'#!/bin/sh\nsleep 0.3\nexec {shutil.which("tee")} "$@"\n')
    slow.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with printed.open("w") as stdout:
        command = [sys.executable, "-c", PROGRAM, str(file)]
        process = subprocess.Popen(command, stdout=stdout, stderr=stdout, env=environment, start_new_session=True)
        began_s = time.monotonic()
        code = process.wait()
    texts, took_s = [path.read_text() for path in (file, printed)], time.monotonic() - began_s
    os.killpg(process.pid, 9)
    assert (code, texts) == (1, ["on stdout\nby a child\nthe last line\n"] * 2)
    assert took_s < 15, "it does not wait for the child"
