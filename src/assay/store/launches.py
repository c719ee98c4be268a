"""The files in which a run's launches are written down: `launches/0001.json`, ..., each put only if absent."""

import getpass
import socket
from pathlib import Path

from assay.base.clock import SystemClock
from assay.records.launch import Launch, LaunchPlace
from assay.records.run import Run
from assay.store.objects import open_store
from assay.store.readable import readable


def save_launch(
    run: Run, *, place: LaunchPlace, job: str, world_size: int, log: str = "", process: str = ""
) -> Launch:
    """Write down what was started, under the next number that is free."""
    store = open_store(run.run_dir)
    number = len(saved_launches(run)) + 1
    while True:
        launch = Launch(
            run_id=run.run_id,
            number=number,
            place=place,
            job=job,
            host=socket.gethostname(),
            process=process,
            started_by=getpass.getuser(),
            started_s=SystemClock().now_s(),
            world_size=world_size,
            log=log,
        )
        if store.put_if_absent(f"launches/{number:04d}.json", launch.to_json().encode()):
            return launch
        number += 1


def saved_launches(run: Run) -> list[Launch]:
    """All launches of a run that can be read, the first one first."""
    return readable(Launch, sorted((Path(run.run_dir) / "launches").glob("*.json")))[0]
