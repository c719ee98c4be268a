"""This machine, in the background."""

from pathlib import Path

from assay.launchers.launches import kill
from assay.launchers.local import BackgroundLauncher
from assay.records.launch import Launch
from assay.records.run import Run
from assay.store.home import Home
from engines.engine import Engine, StartedRun, command_lines, wait_until


class Background(Engine):
    """One process; its ranks are its children."""

    def launcher(self, *, nodes: int = 1, options: tuple[str, ...] = ()) -> BackgroundLauncher:
        return BackgroundLauncher(Home.from_environment(), options)

    def park(self, run: Run) -> Launch:
        return self.launcher().start(run, world_size=1)

    def output(self, started: StartedRun) -> str:
        return Path(started.launch.log).read_text()

    def leader(self, started: StartedRun) -> int:
        wait_until(started.attempts, "an attempt")
        return 0

    def lose(self, started: StartedRun, index: int) -> None:
        kill(started.launch)
        started.wait_for_end()
        assert started.log.finished() is None
        started.launch = self.launcher().start(started.run, world_size=1)

    def num_jobs(self, run: Run) -> int:
        return sum(f"train --resume {run.run_id} " in line for _, line in command_lines())

    def listings(self, started: StartedRun) -> str:
        return "\n".join(f"{pid} {line}" for pid, line in command_lines())
