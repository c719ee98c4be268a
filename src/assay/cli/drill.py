"""`assay drill RECIPE`: kill a short run in every way, and see that it ends the same."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from assay.base.errors import ConfigError
from assay.cli.given import FILE, OutFile, force_option, given_home

if TYPE_CHECKING:
    from assay.records.drill import Exercise


@click.command()
@click.argument("recipe", type=FILE)
@click.argument("overrides", nargs=-1)
@click.option("--workers", default=2, show_default=True, help="Ranks of the pilot.")
@click.option("--steps", default=24, show_default=True, help="Optimizer steps of the pilot.")
@click.option("--out", type=OutFile('"kind":"drill_report"'), help="Write the record (JSON) here.")
@force_option
@click.option("--json", "as_json", is_flag=True, help="Print the record instead of the table.")
def drill(
    recipe: Path, overrides: tuple[str, ...], workers: int, steps: int, out: Path | None, as_json: bool
) -> None:
    """Train the first steps of RECIPE again and again, hurting it each time.

    Ranks are killed while they read, compute, commit and start, one is stopped, the run is preempted, resized,
    resumed on sharded weights, a commit is damaged, the store fails; nodes leave, come and are slow. Each
    must end with the weights of the undisturbed pilot, bit for bit, and a clean audit, and each fault must have
    struck; else the exit code is 1.
    Run it before a large run.
    """
    if out is not None and not out.parent.is_dir():
        raise ConfigError(
            f"--out {out}: there is no folder {out.parent}. Make it first; the drill takes a while."
        )
    if steps < 6:
        raise ConfigError(f"--steps {steps}: a drill needs 6 or more, to have commits in between.")
    from rich.text import Text

    from assay.base.config import read_config_file
    from assay.reporting.terminal.terminal import stdout
    from assay.workflows.drill import drill as run_drill

    screen = stdout()

    def say(exercise: "Exercise") -> None:
        if as_json:
            return
        lives = f"{exercise.num_attempts} attempt{'s' if exercise.num_attempts != 1 else ''}"
        screen.print(f"{exercise.name:<40} {exercise.seconds:6.1f} s  {lives:<12}", end="")
        failed = bool(exercise.problem)
        screen.print(f"FAIL  {exercise.problem}" if failed else "pass", style="red" if failed else "green")

    from assay.reporting.documents.render import write_file

    home = given_home()
    values = read_config_file(recipe, overrides)
    report = run_drill(home, values, num_steps=steps, workers=workers, say=say)
    if out is not None:
        write_file(out, report.to_json() + "\n")
    if as_json:
        click.echo(report.to_json())
    elif report.passed():
        weights = f"all ended with weights {report.exercises[0].weights_digest[:12]}…"
        screen.print(Text.assemble(("passed", "bold green"), ": ", weights))
    raise SystemExit(0 if report.passed() else 1)
