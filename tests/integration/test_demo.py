"""`assay demo`, as its first user meets it: what it says, and what it leaves to look at."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from in_process import AssayAt


@pytest.mark.slow
@pytest.mark.timeout(2400)  # fifteen runs, one of them killed; three minutes on an idle machine
def test_the_demo_proves_what_it_says_and_leaves_a_memo_to_be_proud_of(tmp_path: Path) -> None:
    assay = AssayAt(tmp_path / "runs")
    # The runs that are compared have 40 steps; the campaign is whole.
    command = [sys.executable, "-m", "assay", "demo", "trainer.max_steps=40"]
    environment = {**os.environ, "ASSAY_HOME": str(assay.home)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    output = done.stdout
    assert done.returncode == 0, f"{output}{done.stderr}"
    for words in ("the same, bit for bit", "one worker was killed with SIGKILL", "0 missing, 0 repeated"):
        assert words in output
    assert "Scale faster: wrong answers fall from" in output and "Stop dropout: " in output
    pages = [Path(word) for word in output.split() if word.endswith(".html")]
    assert len(pages) == 3 and all((tmp_path / page).is_file() for page in pages)

    (campaign,) = (tmp_path / "runs" / "campaigns").iterdir()
    decisions = assay.json("decide", "show", campaign.name)
    assert {decision["candidate"]: decision["recommendation"] for decision in decisions} == {
        "faster": "scale",
        "dropout": "stop",
    }
    # Losses differ from processor to processor, and the outlier test of seeds errs in one memo of twenty.
    warned = [warning for decision in decisions for warning in decision["warnings"]]
    assert all(item["code"] == "outlier seed" for item in warned) and len(warned) <= 1, warned
    memo = (campaign / "memo.md").read_text()
    assert "✓ rows: " in memo and "✓ models: no warning" in memo

    campaign_file = str(tmp_path / "runs" / "demo" / "campaign.yaml")
    assert "Nothing was started." in assay("decide", "run", campaign_file, "--check", "--measure", "0").out


@pytest.mark.slow
@pytest.mark.timeout(1200)  # half a minute on an idle machine
def test_the_demo_of_fine_tuning_kills_audits_exports_and_shows_what_the_model_writes(tmp_path: Path) -> None:
    environment = {**os.environ, "ASSAY_HOME": str(tmp_path / "runs")}
    command = [sys.executable, "-m", "assay", "demo", "--sft", "--functions", "2500", "trainer.commit_every=5"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    output = done.stdout
    assert done.returncode == 0, f"{output}{done.stderr}"
    assert re.search(r"one worker was killed with SIGKILL after step \d+; attempt 2 went on from step \d+", output)
    assert re.search(r"audit +pass: ([\d,]+) rows learned, \1 expected, 0 missing, 0 repeated", output), output
    needs = re.search(r"held out +loss per row ([\d.]+) over .* guessing gives ([\d.]+)", output)
    assert needs and float(needs[1]) < 0.9 * float(needs[2])
    assert len(re.findall(r"^def .*\n    people  .+\n    model   ", output, re.MULTILINE)) == 4
    (model,) = (tmp_path / "runs" / "demo-sft").glob("docstrings-sft-*")
    assert {"model.safetensors", "tokenizer.json", "README.md"} <= {file.name for file in model.iterdir()}
