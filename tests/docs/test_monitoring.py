"""The page on monitoring names every metric, and its alerts name only metrics and labels that there are."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from assay.records.failure import FailureKind
from assay.records.run import RunStatus

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "monitoring.md").read_text()
SOURCES = ("serving/http/operations.py", "reporting/views/home_metrics.py", "workers/batch/metrics.py")
COUNTERS = {"assay_http_requests", "assay_worker_store_errors"}
"""In the text format, their names end with `_total`."""
VALUES = {
    "failure_kind": {"none", *get_args(FailureKind)},
    "kind": {"fine_tuning", "eval_run", "batch"},
    "loop": {"jobs", "webhooks", "evals and batches"},
    "status": {*get_args(RunStatus), "waiting", "running", "paused", "5.."},
    "use": {"useful", "lost", "other", "evaluation", "waiting"},
    "job": {"assay"},
}


def exported() -> set[str]:
    """Names of metrics as the source writes them."""
    text = "".join((ROOT / "src" / "assay" / name).read_text() for name in SOURCES)
    names = set(re.findall(r'"(assay_[a-z_]+)"', text)) | {"assay_ledger_up", "assay_store_up"}
    return {f"{name}_total" if name in COUNTERS else name for name in names}


def alerts() -> list[str]:
    section = PAGE.partition("## Alerts")[2].partition("## Logs")[0]
    rows = [re.split(r"(?<!\\)\|", line) for line in section.splitlines() if line.startswith("| ")]
    return [cells[2].replace("\\|", "|") for cells in rows[1:]]


def expressions() -> list[str]:
    return [match[1] for alert in alerts() if (match := re.match(r" `(.+?)`", alert))]


def test_every_metric_is_on_the_page_and_no_other() -> None:
    assert set(re.findall(r"assay_[a-z_]+", PAGE)) == exported()


def test_alerts_use_names_and_values_that_there_are() -> None:
    assert len(alerts()) > 10
    for alert in alerts():
        assert set(re.findall(r"assay_[a-z_]+", alert)) <= exported(), alert
        for label, values in re.findall(r'(\w+)=~?"([^"]*)"', alert):
            assert {*values.split("|")} <= VALUES[label], alert


def test_prometheus_takes_the_alerts_as_rules(requires: Callable[[str, bool, str], None], tmp_path: Path) -> None:
    requires("prometheus", shutil.which("promtool") is not None, "promtool is not installed (apt install prometheus)")
    rules = [{"alert": f"alert_{number}", "expr": alert} for number, alert in enumerate(expressions())]
    assert len(rules) == len(alerts())
    file = tmp_path / "rules.json"  # which is YAML, too
    file.write_text(json.dumps({"groups": [{"name": "assay", "rules": rules}]}))
    checked = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True)
    assert checked.returncode == 0 and f"{len(rules)} rules found" in checked.stdout, checked.stderr
