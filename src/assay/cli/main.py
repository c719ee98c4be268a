"""The command line: one verb per stage; each imports what it needs when it runs, so `--help` is fast."""

import gc
import importlib
import os
import sys
from typing import Any

import click

from assay.base.errors import known_error, path_error
from assay.base.visible import visible_output

_COMMANDS = {
    "data": ("assay.cli.data", "Adopt, build, split and describe datasets."),
    "recipe": ("assay.cli.recipe", "Write the first recipe for a dataset, each line explained."),
    "demo": ("assay.cli.demo", "The whole story on this machine, in under five minutes."),
    "train": ("assay.cli.train", "Train a recipe; resume it where it stopped."),
    "join": ("assay.cli.join", "Lend this machine to a run that is led on several nodes."),
    "stop": ("assay.cli.stop", "Ask a run to commit and leave, wherever it was started."),
    "runs": ("assay.cli.runs", "List the runs; tag, note and delete them."),
    "show": ("assay.cli.show", "What a run did, cost and measured."),
    "diff": ("assay.cli.diff", "What differs between two runs, and what came of it."),
    "goodput": ("assay.cli.goodput", "Where the device time went, and what each interruption cost."),
    "drill": ("assay.cli.drill", "Kill a short run in every way, and see that it ends the same."),
    "audit": ("assay.cli.audit", "Prove that each row was learned exactly once, or name the rows."),
    "replay": ("assay.cli.replay", "Run a step again: bit for bit, operator by operator, row by row."),
    "rollout": ("assay.cli.rollout", "One answer of a GRPO run, drawn again alone: its bits and its reward."),
    "export": ("assay.cli.export", "A run's model as a folder that other tools load, with its evidence."),
    "predict": ("assay.cli.predict", "Ask a run's or an exported model about the rows of a file."),
    "chat": ("assay.cli.chat", "Talk with a language model: a run's commit, or a folder."),
    "sink": ("assay.cli.sink", "A run's metrics in TensorBoard, MLflow or W&B, live."),
    "eval": ("assay.cli.eval", "Ask checkpoints the questions of a suite; scores over checkpoints."),
    "compare": ("assay.cli.compare", "A run beside its baseline."),
    "plan": ("assay.cli.plan", "Check, schedule and question a program of experiments."),
    "campaign": ("assay.cli.campaign", "Baseline and candidates x seeds, until the gates have decided."),
    "decide": ("assay.cli.decide", "Scale, narrow or stop: judge a campaign again, write its memo."),
    "evidence": ("assay.cli.evidence", "What a comparison could find; which small scale tells the truth."),
    "throughput": (
        "assay.cli.throughput",
        "What a recipe takes on more workers, before they are booked; what would help.",
    ),
    "scaling": ("assay.cli.scaling", "Fit loss over scale, predict larger runs; compare learning speed."),
    "serve": ("assay.cli.serve", "OpenAI's fine-tuning API on this machine."),
    "key": ("assay.cli.key", "Who may ask 'assay serve', and for which project."),
    "worker": ("assay.cli.worker", "Train what was asked for over the API."),
    "triage": ("assay.cli.triage.group", "Why attempts fail, over a whole fleet, and whether the fix worked."),
    "report": ("assay.cli.report", "One self-contained HTML page about a run."),
}


INTERRUPTED = 128 + 2
"""Exit code of a command that Ctrl-C ended."""


class _LazyGroup(click.Group):
    """Knows its commands by name; imports the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def invoke(self, ctx: click.Context) -> Any:
        """Ctrl-C is exit code 130, as shells have it; what it left is said."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            click.echo(str(interrupt) or "interrupted", err=True)
            ctx.exit(INTERRUPTED)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(_COMMANDS[cmd_name][0])
        # A command that is called as a builtin is called has a name of its own in its module: eval_.
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
    """Run a command; exit 0 done, 1 failed, 2 asked wrongly, 3 nothing proved, 75 try again, 130 Ctrl-C."""
    # What is imported stays: looking for garbage meanwhile takes an eighth of a short command's time.
    gc.set_threshold(100_000)
    # Nobody's plugin reads our records; the search for them, through all installed packages, takes a twentieth.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # NumPy's BLAS starts a thread for each core, which spin before there is work: a sixth of what `show` takes.
    # What evidence adds up has the same bits on every number of cores, too. PyTorch has threads of its own.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with visible_output():
        try:
            return cli.main(args=arguments, prog_name="assay")
        except Exception as error:
            if (known := known_error(error) or path_error(error)) is None:
                raise
            click.secho(f"error: {known}", err=True, fg="red")
            sys.exit(known.exit_code)
