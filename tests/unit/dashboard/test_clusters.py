"""The page of a run says who was in which outer step, if the run is one of several clusters."""

import re
from pathlib import Path

import pytest

from assay.records.outer import LaneSteps, OuterBegan, OuterPart, OuterStep
from assay.records.run import Attempt, ClusterOf, PhaseSeconds
from assay.store.logs.outer_log import OuterLog, outer_log
from assay.store.objects import open_store
from machine import MACHINE
from unit.dashboard.conftest import Site
from unit.store.ledger.test_goodput import run_of

LANES = {"east": (0,), "west": (1,)}


def outer_step(number: int, *clusters: str) -> OuterStep:
    parts = tuple(
        OuterPart(
            outer_step=number, cluster=cluster, weight=9, change_sha256="", num_bytes=1000, weights_digest="",
            lanes=(LaneSteps(lane=LANES[cluster][0], from_step=0, to_step=5, num_rows=40, rows_digest=""),),
            moments_digest="", last_moments_digest="", inner_s=2.0,
        )
        for cluster in clusters
    )  # fmt: skip
    return OuterStep(
        outer_step=number, parts=parts, lanes=LANES, absent={name: 1 for name in LANES if name not in clusters}
    )


@pytest.fixture
def log(site: Site, tmp_path: Path) -> OuterLog:
    """The log of outer steps of 'run-east', which stands beside a run on one cluster."""
    cluster_of = ClusterOf(cluster="east", meeting_url=str(tmp_path / "meet"))
    with site.dashboard.home.open_ledger() as ledger:
        for run in (run_of("run-east").model_copy(update={"cluster_of": cluster_of}), run_of("alone")):
            ledger.record_run(run.model_copy(update={"run_dir": str(tmp_path), "store_url": str(tmp_path)}))
            times = {"start_step": 0, "started_s": 0.0, "ended_s": 60.0, "end_step": 6}
            ledger.record_attempt(
                Attempt(run_id=run.run_id, attempt=1, world_size=1, outcome="killed", **times, **MACHINE)
            )
            ledger.record_phase_seconds(
                PhaseSeconds(run_id=run.run_id, attempt=1, rank=0, held_s=60.0, seconds={"compute": 45, "late": 15})
            )
    log = outer_log(open_store(cluster_of.meeting_url))
    began = OuterBegan(recipe_sha256="", dataset_fingerprint="", inner_steps=5, lane_steps=20, lanes=LANES)
    log.append(lambda _: began)
    return log


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading."""
    table = page.partition(f"<h3>{heading}</h3>")[2].partition("</table>")[0]
    found = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in table.split("<tr>")[2:]]
    return [[re.sub("<[^>]+>", "", cell) for cell in row] for row in found]


def test_the_page_of_a_cluster_names_who_was_in_which_outer_step(site: Site, log: OuterLog) -> None:
    log.append(lambda _: outer_step(1, "east"))
    page = site.browser.get("/runs/run-east").text
    assert rows(page, "Last outer steps") == [["1", "40 in 2 s", "absent", "1.0 kB"]]
    assert rows(page, "Clusters") == [
        ["east", "1", "1 of 1", "0", "40", "9", "1.0 kB"],
        ["west", "1", "0 of 1", "1", "0", "0", "0 B"],
    ]  # fmt: skip
    assert 'class="phase late"' in page and "not known of west" in page
    log.append(lambda _: outer_step(2, "west"))
    again = site.browser.get("/runs/run-east").text
    assert rows(again, "Last outer steps")[1] == ["2", "absent", "40 in 2 s", "1.0 kB"]


@pytest.mark.usefixtures("log")
def test_a_run_on_one_cluster_has_no_word_of_others(site: Site) -> None:
    page = site.browser.get("/runs/alone").text
    assert "Training loss" in page or "What happened" in page
    assert "cluster" not in page.partition("<main")[2].lower()
