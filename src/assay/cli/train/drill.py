"""`assay train drill RECIPE`: inject faults into a short run, and check that the weights stay the same."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.errors import ConfigError
from assay.cli.parameters import FILE, OutFile, current_home, force_option, json_option

if TYPE_CHECKING:
    from assay.records.drill import Exercise


@click.command()
@click.argument("recipe", type=FILE)
@click.argument("overrides", nargs=-1)
@click.option("--workers", default=2, help="Number of ranks of the pilot run.")
@click.option("--steps", default=24, help="Number of optimizer steps of the pilot run.")
@click.option("--out", type=OutFile('"kind":"drill_report"'), help="File for the drill's JSON record.")
@force_option
@json_option
def drill(recipe: Path, overrides: tuple[str, ...], workers: int, steps: int, out: Path | None, as_json: bool) -> None:
    """Train the first steps of RECIPE repeatedly, with another fault each time.

    Ranks are killed while they read, compute, commit or start; a rank hangs; the run is preempted, resized and
    resumed with sharded weights; a commit is corrupted; the store fails; nodes leave, join and slow down. Each
    exercise must end with the weights of the undisturbed pilot, bit for bit, and a clean audit, and its fault
    must have occurred. Otherwise the exit code is 1. Run the drill before a large run.
    """
    if out is not None and not out.parent.is_dir():
        raise ConfigError(f"--out {out}: the folder {out.parent} does not exist. Create it first.")
    if steps < 6:
        raise ConfigError(f"--steps {steps}: a drill needs 6 or more steps, to have commits in between.")
    from rich.text import Text

    from assay.base.config import read_config_file
    from assay.reporting.terminal.terminal import stdout
    from assay.workflows.drill import drill as run_drill

    screen = stdout()

    def print_exercise(exercise: "Exercise") -> None:
        if as_json:
            return
        attempts = f"{exercise.num_attempts} attempt{'s' if exercise.num_attempts != 1 else ''}"
        screen.print(f"{exercise.name:<40} {exercise.seconds:6.1f} s  {attempts:<12}", end="")
        failed = bool(exercise.problem)
        screen.print(f"FAIL  {exercise.problem}" if failed else "pass", style="red" if failed else "green")

    from assay.reporting.documents.render import write_file

    home = current_home()
    values = read_config_file(recipe, overrides)
    report = run_drill(home, values, num_steps=steps, workers=workers, on_exercise=print_exercise)
    if out is not None:
        write_file(out, report.to_json() + "\n")
    if as_json:
        click.echo(report.to_json())
    elif report.passed():
        weights = f"all ended with weights {report.exercises[0].weights_digest[:12]}…"
        screen.print(Text.assemble(("passed", "bold green"), ": ", weights))
    raise SystemExit(0 if report.passed() else 1)
