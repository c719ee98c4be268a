"""`assay check resume -- COMMAND`: disturb a training script and judge how it resumes."""

import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from assay.base.clock import SystemClock
from assay.base.errors import ConfigError
from assay.cli.parameters import OUT_PAGE, OutFile, force_option, json_option


class _Names(click.ParamType):  # type: ignore[type-arg]
    """Names, separated by commas."""

    name = "names"

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        from assay.checks.resume.check import EXERCISES
        from assay.checks.resume.properties import PROPERTIES

        known = EXERCISES if self._kind == "exercise" else PROPERTIES
        names = tuple(known) if value == "all" else tuple(str(value).split(","))
        for name in names:
            if name not in known:
                self.fail(f"there is no {self._kind} '{name}'. There are: {', '.join(known)}.", param, ctx)
        return names


@click.command()
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND...")
@click.option("--resume-command", help="Command that resumes, as one text; by default COMMAND again.")
@click.option("--workers", default="1", help="World sizes, such as 1,2: start at the first, resume at all.")
@click.option("--out-variable", help="Environment variable that names the output folder, instead of {out}.")
@click.option("--exercises", type=_Names("exercise"), default="all", help="What to do to it, such as step,sigterm.")
@click.option("--require", type=_Names("property"), default="all", help="Properties that decide the exit code.")
@click.option("--timeout", default=600.0, help="Seconds that one attempt may take.")
@click.option("--grace", default=30.0, help="Seconds that it may take to end after SIGTERM.")
@click.option("--scratch", type=click.Path(path_type=Path), help="New folder for all it writes; kept afterwards.")
@click.option("--page", type=OUT_PAGE, help="HTML page to write.")
@click.option("--markdown", "table", type=OutFile("resume check"), help="Markdown file to write.")
@force_option
@json_option
def resume(
    command: tuple[str, ...],
    resume_command: str | None,
    workers: str,
    out_variable: str | None,
    exercises: tuple[str, ...],
    require: tuple[str, ...],
    timeout: float,
    grace: float,
    scratch: Path | None,
    page: Path | None,
    table: Path | None,
    as_json: bool,
) -> None:
    """Run a training script, kill it at chosen steps, resume it, and compare with an undisturbed run.

    COMMAND: any command that trains with PyTorch; the script needs no change. {out} stands for its output folder, a
    new one that the command empties; {workers} for the number of processes; {checkpoint}, in --resume-command, for
    the newest whole checkpoint. The exit code is 1 if a required property fails.

    \b
    assay check resume -- python train.py --output {out}
    assay check resume --workers 1,2 -- torchrun --nproc-per-node {workers} train.py {out}
    """
    from assay.checks.resume.attempt import ScriptCommand
    from assay.checks.resume.check import ResumeCheckRun
    from assay.checks.resume.document import check_document, check_view, failures

    sizes = _sizes(workers)
    again = tuple(shlex.split(resume_command)) if resume_command else command
    _check_placeholders(command, again, sizes, out_variable)
    # The processes of the script end with the check.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with _scratch_folder(scratch) as folder:
        out = folder / "out"
        variables = {out_variable: str(out)} if out_variable else {}
        check = ResumeCheckRun(
            ScriptCommand(command, out, variables, timeout, grace),
            ScriptCommand(again, out, variables, timeout, grace),
            folder,
            workers=sizes,
            exercises=exercises,
            on_exercise=lambda text: click.echo(f"{text} ...", err=True),
        ).run()
    document = check_document(check, shlex.join(command), shlex.join(again), require, now_s=SystemClock().now_s())
    from assay.reporting.documents.markdown import markdown
    from assay.reporting.documents.render import render_document, write_file
    from assay.reporting.terminal.document import print_document

    if page is not None:
        write_file(page, render_document(document))
    if table is not None:
        write_file(table, markdown(document))
    if as_json:
        click.echo(check_view(check, require).to_json())
    else:
        print_document(document)
    sys.exit(1 if failures(check, require) else 0)


def _sizes(workers: str) -> list[int]:
    try:
        sizes = [int(size) for size in workers.split(",")]
    except ValueError:
        sizes = [0]
    if min(sizes) < 1 or len(set(sizes)) < len(sizes):
        raise ConfigError(f"--workers {workers}: give different numbers from 1, such as 1,2.")
    return sizes


def _check_placeholders(
    command: Sequence[str], resume: Sequence[str], sizes: Sequence[int], out_variable: str | None
) -> None:
    for words in (command, resume):
        if not out_variable and not any("{out}" in word for word in words):
            raise ConfigError(
                f"'{shlex.join(words)}' has no {{out}}. Put it where the output folder of the script belongs, so that "
                "your own folders stay as they are; or name an environment variable by --out-variable."
            )
        if len(sizes) > 1 and not any("{workers}" in word for word in words):
            raise ConfigError(
                f"--workers {','.join(map(str, sizes))}: '{shlex.join(words)}' has no {{workers}}, such as in "
                "'torchrun --nproc-per-node {workers} train.py'."
            )


@contextmanager
def _scratch_folder(scratch: Path | None) -> Iterator[Path]:
    if scratch is None:
        folder = Path(tempfile.mkdtemp(prefix="assay-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    if scratch.exists():
        raise ConfigError(f"--scratch {scratch}: exists already. Name a new folder.")
    scratch.mkdir(parents=True)
    yield scratch.resolve()
