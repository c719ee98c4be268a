"""The command line. Commands are imported when they run, so `--help` is fast."""

import atexit
import gc
import os
import sys
from typing import Any

import click

from assay.base.errors import known_error, path_error
from assay.base.visible import visible_output
from assay.cli.command import CommandGroup

_COMMANDS = {
    "demo": ("assay.cli.demo", "Train, kill, audit and decide, in under five minutes."),
    "data": ("assay.cli.data", "Index, build, split, describe and compare datasets."),
    "train": ("assay.cli.train.group", "Train a recipe; resume, fork, stop and drill runs."),
    "runs": ("assay.cli.runs.group", "List, show, audit, replay, export and delete runs."),
    "eval": ("assay.cli.eval.group", "Evaluate checkpoints on a suite; predict for rows; chat."),
    "decide": ("assay.cli.decide.group", "Run campaigns and decide by gates; compare runs."),
    "ladder": ("assay.cli.ladder", "Try changes to a known-good config, one at a time."),
    "plan": ("assay.cli.plan", "Check, schedule and simulate a program of experiments."),
    "triage": ("assay.cli.triage.group", "Find out why runs fail or slow down."),
    "throughput": ("assay.cli.throughput", "Forecast a recipe on more workers; rank what would help."),
    "doctor": ("assay.cli.doctor", "List what a recipe's shapes waste of a device."),
    "scaling": ("assay.cli.scaling", "Fit scaling laws, and predict larger runs."),
    "check": ("assay.cli.check.group", "Test how other training scripts resume, and training APIs."),
    "serve": ("assay.cli.serve.group", "Serve OpenAI's fine-tuning API; its workers and keys."),
    "mcp": ("assay.cli.mcp", "Serve the facts of this home to agents, for reading."),
    "report": ("assay.cli.report", "Write a self-contained HTML page about a run."),
}


INTERRUPTED = 128 + 2
"""Exit code after Ctrl-C, as in shells."""


class _Cli(CommandGroup):
    """The whole command line: it reports Ctrl-C by its exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            click.echo(str(interrupt) or "interrupted", err=True)
            ctx.exit(INTERRUPTED)


def _print_version(context: click.Context, _: click.Parameter, is_requested: bool) -> None:
    if is_requested:
        from assay.base.code_version import code_version

        click.echo(f"assay, version {code_version()}")
        context.exit()


@click.group(
    cls=_Cli, modules=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.option("--version", is_flag=True, expose_value=False, callback=_print_version, help="Show the version and exit.")
def cli() -> None:
    """Take a post-training experiment from a pilot to decision-ready evidence."""


def main(arguments: list[str] | None = None) -> Any:
    """Run a command. Exit codes: 0 done, 1 failed, 2 usage error, 3 nothing proved, 75 try again, 130 Ctrl-C."""
    # Imported objects live until the end: collecting garbage meanwhile costs 1/8 of a short command's time.
    gc.set_threshold(100_000)
    # At the end, collecting them would take a tenth of a short command's time, and most of a second of a server's.
    atexit.register(gc.freeze)
    # Searching all installed packages for pydantic plugins costs 1/20 of a short command's time.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # OpenBLAS starts a thread per core, which costs 1/6 of the time of `runs show`. One thread also makes sums
    # bitwise equal on any number of cores. PyTorch has its own threads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with visible_output():
        try:
            return cli.main(args=arguments, prog_name="assay")
        except Exception as error:
            if (known := known_error(error) or path_error(error)) is None:
                raise
            click.secho(f"error: {known}", err=True, fg="red")
            sys.exit(known.exit_code)
