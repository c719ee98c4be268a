"""The command line. Commands are imported when they run, so `--help` is fast."""

import gc
import importlib
import os
import sys
from typing import Any

import click

from assay.base.errors import known_error, path_error
from assay.base.visible import visible_output

_COMMANDS = {
    "data": ("assay.cli.data", "Index, build, split and describe datasets."),
    "recipe": ("assay.cli.recipe", "Write a first recipe for a dataset, with comments."),
    "demo": ("assay.cli.demo", "Train, kill, audit and decide on this machine in under five minutes."),
    "train": ("assay.cli.train", "Train a recipe, or resume a run."),
    "join": ("assay.cli.join", "Add this machine to a run on several nodes."),
    "stop": ("assay.cli.stop", "Ask a run to commit and stop."),
    "runs": ("assay.cli.runs", "List runs; tag, annotate and delete them."),
    "show": ("assay.cli.show", "Show what a run did, cost and measured."),
    "diff": ("assay.cli.diff", "Show what differs between two runs."),
    "goodput": ("assay.cli.goodput", "Account for device time and interruptions."),
    "drill": ("assay.cli.drill", "Inject faults into a short run, and check its weights."),
    "audit": ("assay.cli.audit", "Check that training used each row exactly once."),
    "replay": ("assay.cli.replay", "Replay a training step and compare it bit for bit."),
    "rollout": ("assay.cli.rollout", "Replay one rollout of a GRPO run and compare it bit for bit."),
    "export": ("assay.cli.export", "Write the model of a run to a folder that other tools load."),
    "predict": ("assay.cli.predict", "Predict for the rows of a file with a run's or an exported model."),
    "chat": ("assay.cli.chat", "Chat with a language model: a run's commit, or a folder."),
    "sink": ("assay.cli.sink", "Send a run's metrics to TensorBoard, MLflow or W&B."),
    "eval": ("assay.cli.eval", "Evaluate checkpoints on a suite; show scores over checkpoints."),
    "compare": ("assay.cli.compare", "Compare runs with a baseline."),
    "plan": ("assay.cli.plan", "Check, schedule and simulate a program of experiments."),
    "campaign": ("assay.cli.campaign", "Train a baseline and candidates over seeds, and decide by gates."),
    "decide": ("assay.cli.decide", "Decide a campaign again and write its memo."),
    "evidence": ("assay.cli.evidence", "Compute the power of a comparison; validate small scales."),
    "throughput": (
        "assay.cli.throughput",
        "What a recipe takes on more workers, before they are booked; what would help.",
    ),
    "scaling": ("assay.cli.scaling", "Fit scaling laws, predict larger runs; compare learning speed."),
    "serve": ("assay.cli.serve", "Serve OpenAI's fine-tuning API on this machine."),
    "key": ("assay.cli.key", "Manage API keys and projects of 'assay serve'."),
    "worker": ("assay.cli.worker", "Run the jobs of 'assay serve'."),
    "triage": ("assay.cli.triage.group", "Find out why attempts fail or slow down, and whether a fix worked."),
    "report": ("assay.cli.report", "Write a self-contained HTML page about a run."),
}


INTERRUPTED = 128 + 2
"""Exit code after Ctrl-C, as in shells."""


class _LazyGroup(click.Group):
    """A group that imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            click.echo(str(interrupt) or "interrupted", err=True)
            ctx.exit(INTERRUPTED)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(_COMMANDS[cmd_name][0])
        # A command named like a builtin has a trailing underscore in its module: eval_.
        command: click.Command = getattr(module, cmd_name, None) or getattr(module, f"{cmd_name}_")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="assay")
def cli() -> None:
    """Take a post-training experiment from a promising pilot to decision-ready evidence."""


def main(arguments: list[str] | None = None) -> Any:
    """Run a command. Exit codes: 0 done, 1 failed, 2 usage error, 3 nothing proved, 75 try again, 130 Ctrl-C."""
    # Imported objects live until the end: collecting garbage meanwhile costs 1/8 of a short command's time.
    gc.set_threshold(100_000)
    # Searching all installed packages for pydantic plugins costs 1/20 of a short command's time.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # OpenBLAS starts a thread per core, which costs 1/6 of the time of `show`. One thread also makes sums
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
