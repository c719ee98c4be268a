"""Parameter types of the commands, shared options, and access to the home and its ledger."""

import glob
import os
import re
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.base.errors import ConfigError, regular
from assay.elastic.workers import Workers

if TYPE_CHECKING:
    from assay.serving.sessions.sessions import SessionRepository
    from assay.store.home import Home
    from assay.store.ledger.ledger import Ledger

    _Type = click.ParamType[Any]
else:
    _Type = click.ParamType


class _Path(click.Path):
    """A path to read that is no pipe, device or socket."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return regular(Path(os.fsdecode(super().convert(value, param, ctx))))


class InputFile(_Path):
    """A file to read; a missing one is reported before the command imports anything."""

    def __init__(self, hint: str = "") -> None:
        """`hint`: what to do if the file is missing; `{path}` is replaced by the file."""
        super().__init__(dir_okay=False, path_type=Path)
        self._hint = hint

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path: Path = super().convert(value, param, ctx)
        if not path.exists():
            raise ConfigError(f"{path}: no such file. {self._hint.format(path=path)}".rstrip())
        return path


class OutFile(click.Path):
    """A file to write; an existing one is replaced with --force, or if assay wrote it in the same format."""

    def __init__(self, own: str = "") -> None:
        """`own`: text that identifies a file of this format; empty if any existing file may be the user's own
        work."""
        super().__init__(dir_okay=False, path_type=Path)
        self._own = own.encode()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        existing = path.read_bytes() if path.is_file() and not is_forced() else b""
        if existing and not (self._own and self._own in existing):
            why = " and was not written by this command" if self._own else ""
            raise ConfigError(f"{path}: exists already{why}. Name another file, or replace it with --force.")
        return path


class _Run(_Type):
    """A run, by its id or the beginning of its id."""

    name = "run"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        """Return the whole id, as far as it is known without asking a server."""
        try:
            return current_home().meant_run(value)
        except ConfigError as error:
            if not is_session(value):
                raise
            raise ConfigError(
                f"{value}: no worker of this home has executed a request of such a session, so it is no run. "
                "'assay serve sessions' is the worker; 'assay runs list' has the sessions so far."
            ) from error


class _RunOrPipeline(_Run):
    """The name of a declared pipeline, or a run."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if current_home().has_pipeline(value):
            return str(value)
        return super().convert(value, param, ctx)


class _RunOrSession(_Run):
    """A session of the Tinker API or a model of one, by its whole id, or a run."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value) if is_session(value) else super().convert(value, param, ctx)


def is_session(text: str) -> bool:
    """Return whether a text names a session of the Tinker API, or a model of one: `SESSION:train:0`."""
    return re.fullmatch("session-[0-9a-f]{24}(:train:[0-9]{1,9})?", text) is not None


def current_sessions() -> "SessionRepository":
    """Return the sessions of `$ASSAY_HOME`."""
    from assay.base.clock import SystemClock
    from assay.serving.sessions.sessions import SessionRepository
    from assay.store.objects import open_store

    return SessionRepository(open_store(str(current_home().api)), SystemClock())


class _FileOrRun(_Run):
    """A YAML or CSV file, or a run."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if Path(value).suffix.lower() in (".yaml", ".yml", ".csv") or Path(value).is_file():
            return str(FILE.convert(value, param, ctx))
        return super().convert(value, param, ctx)


class _Campaign(_Type):
    """A declared campaign, by its name."""

    name = "campaign"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        return current_home().campaign_dir(value).name


class _Source(_Type):
    """A file or folder to read, a glob pattern, or the URL of a store."""

    name = "source"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        is_url = "://" in value
        if not is_url and not Path(value).exists() and not glob.glob(value, recursive=True):  # noqa: PTH207
            raise ConfigError(f"{value}: no such file or folder.")
        if not is_url:
            regular(Path(value))
        return str(value)


class _SourcePath(_Source):
    """A file or folder to read, or a glob pattern."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return Path(super().convert(value, param, ctx))


class _SourceOrRun(_SourcePath):
    """A file, a folder or a glob pattern; otherwise a run, or a step of it (`RUN@STEP`)."""

    name = "source_or_run"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, or the run's whole id, with `@STEP` if a step is named."""
        home = current_home()
        is_file = Path(value).is_file() or "/" in value
        if not is_file and (home.has_run(value.partition("@")[0]) or not Path(value).exists()):
            try:
                run_id, step = run_and_step(home, value)
            except ConfigError as error:
                raise ConfigError(f"{value}: no such file or folder; and {error}") from error
            return run_id if step is None else f"{run_id}@{step}"
        return super().convert(value, param, ctx)


class _Dataset(click.Path):
    """The folder with the manifest of a dataset."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from assay.data.dataset.manifest_file import check_is_dataset

        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        check_is_dataset(path)
        return path


class _RecipeOrChange(InputFile):
    """A recipe, or `key=value`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        is_change = "=" in str(value) and not Path(value).exists()
        if Path(value).is_dir():
            raise ConfigError(
                f"{value}: a folder, not a recipe. If it is a dataset, write a first recipe for it: 'assay train new "
                f"{value} --out recipe.yaml'."
            )
        return Path(value) if is_change else super().convert(value, param, ctx)


class _Workers(_Type):
    """A number of workers, or a range."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Workers:  # noqa: ARG002
        return value if isinstance(value, Workers) else Workers.of(str(value))


FILE = InputFile()
RECIPE_OR_CHANGE = _RecipeOrChange()
RUN = _Run()
RUN_OR_PIPELINE = _RunOrPipeline()
RUN_OR_SESSION = _RunOrSession()
FILE_OR_RUN = _FileOrRun()
CAMPAIGN = _Campaign()
DATASET = _Dataset(path_type=Path)
SOURCE = _Source()
SOURCE_PATH = _SourcePath()
SOURCE_OR_RUN = _SourceOrRun()
PATH = _Path()
OUT_FILE = OutFile()
OUT_PAGE = OutFile("· assay</title>")
FOLDER = click.Path(file_okay=False, path_type=Path)
WORKERS = _Workers()


def current_home() -> "Home":
    """Return the home that $ASSAY_HOME names."""
    from assay.store.home import Home

    return Home.from_environment()


def run_and_step(home: "Home", text: str) -> tuple[str, int | None]:
    """Parse `RUN@STEP` into a run id and a step; `RUN` has no step, even if its id contains an `@`."""
    run_id, at, step = text.rpartition("@")
    if not at or not step.isdecimal() or ("/" not in text and home.has_run(text)):
        return home.meant_run(text), None
    return home.meant_run(run_id), int(step)


def writable_ledger(home: "Home") -> "Ledger":
    """Open the home's ledger for writing, create it if needed, and add the facts that it missed while it was
    down."""
    return _up_to_date(home, home.open_ledger())


_SQLITE_FREE_BYTES = 1_000_000
"""Free space that SQLite may need to read a ledger."""


def readable_ledger(home: "Home") -> "Ledger | None":
    """Open the home's ledger for reading; None if there is none. One that is not writable is copied first."""
    from assay.store.ledger.writer import missed_subjects

    file = home.ledger_file()
    if file is None or not file.exists() or _is_writable(file):
        ledger = home.find_ledger()
        if ledger is None and missed_subjects(home) and os.access(home.folder, os.W_OK):
            ledger = home.open_ledger()  # the first runs were recorded by scripts, which write no ledger
        return None if ledger is None else _up_to_date(home, ledger)
    from assay.store.ledger.ledger import copied_ledger

    return _up_to_date(home, copied_ledger(file, located=home.locating()))


def warn_if_stale(ledger: "Ledger", run_ids: Collection[str] | None = None) -> None:
    """Warn on stderr about runs (all, if None) whose numbers in the ledger may be stale."""
    from assay.base.clock import SystemClock
    from assay.reporting.views.runs.run_list import run_lines

    for line in run_lines(ledger):
        if line.is_stale and (run_ids is None or line.run_id in run_ids):
            click.secho(line.stale_text(SystemClock().now_s()), err=True, fg="yellow")


def ledger_with_runs(home: "Home", *run_ids: str) -> "Ledger":
    """Open the ledger for reading, and record the given runs first if they are missing in it."""
    ledger = readable_ledger(home)
    if ledger is None and not any(map(home.has_run, run_ids)):
        raise ConfigError(f"there are no runs in {home.folder}. Check $ASSAY_HOME.")
    ledger = ledger or home.open_ledger()
    for run_id in filter(home.has_run, run_ids):
        if not ledger.has_run(run_id):
            from assay.workflows.rebuild import fold_in

            fold_in(home, run_id, ledger)
    return ledger


def _is_writable(file: Path) -> bool:
    """Return whether SQLite can write to the file and its folder; it needs to even for readers."""
    is_accessible = all(os.access(path, os.W_OK, effective_ids=True) for path in (file, file.parent))
    return is_accessible and shutil.disk_usage(file.parent).free >= _SQLITE_FREE_BYTES


def _up_to_date(home: "Home", ledger: "Ledger") -> "Ledger":
    from assay.store.ledger.writer import missed_subjects

    if missed_subjects(home):
        from assay.workflows.rebuild import fold_in_missed

        for problem in fold_in_missed(home, ledger):
            click.echo(problem, err=True)
    return ledger


_LOG_FORMAT = "ASSAY_LOG_FORMAT"


def _set_log_format(context: click.Context, _: click.Parameter, value: str) -> None:
    os.environ[_LOG_FORMAT] = value  # for this process and those that it starts
    if value == "json":
        from assay.base.json_log import use_log_format  # here, for most commands log nothing

        use_log_format(context.command_path.replace(" ", "."))


log_format_option = click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    envvar=_LOG_FORMAT,
    expose_value=False,
    is_eager=True,
    callback=_set_log_format,
    help="Format of what is logged on stderr: text, or a JSON object a line (docs/monitoring.md).",
)

python_graders_option = click.option(
    "--python-graders",
    type=click.Choice(["fenced", "trusted"]),
    help="How Python graders run: in a sandbox of the kernel, or rejected without one (fenced), or with all your "
    "permissions (trusted).  [$ASSAY_PYTHON_GRADERS, else settings.yaml, else fenced]",
)


def set_python_graders(mode: str | None) -> None:
    """Apply the option to this process and the processes that it starts."""
    if mode is not None:
        os.environ["ASSAY_PYTHON_GRADERS"] = mode


def combined(*options: Callable[[Any], Any]) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """Return a decorator that adds these options, in this order."""

    def add(command: click.decorators.FC) -> click.decorators.FC:
        for option in reversed(options):
            command = option(command)
        return command

    return add


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/json.md).")


def seed_option(of: str) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """Return --seed; `of`: what is random."""
    return click.option("--seed", type=click.IntRange(min=0), default=0, help=f"Seed of {of}.")


def jobs_option(default: int, doing: str) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """Return --jobs, the number of threads or processes of the command itself; --workers are ranks that train."""
    return click.option("--jobs", type=click.IntRange(min=1), default=default, metavar="N", help=doing)


def measure_option(
    default: float, help: str, *, least: float = 0.0, most: float | None = None
) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """Return --measure, the seconds of real training steps that the command measures."""
    return click.option(
        "--measure",
        "measure_s",
        type=click.FloatRange(min=least, max=most),
        default=default,
        metavar="SECONDS",
        help=help,
    )


def timeout_option(default: float, of: str) -> Callable[[click.decorators.FC], click.decorators.FC]:
    """Return --timeout; `of`: what it limits."""
    return click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=0.0, min_open=True),
        default=default,
        metavar="SECONDS",
        help=f"Time limit of {of}.",
    )


_FORCE = "assay.force"

force_option = click.option(
    "--force",
    is_flag=True,
    is_eager=True,  # before OutFile checks the file
    expose_value=False,
    callback=lambda context, _, value: context.meta.update({_FORCE: value}),
    help="Replace existing files.",
)


def print_view(view: Any, show: Callable[[Any], object], *, as_json: bool) -> None:
    """Print a view or record as JSON, or show it to a person."""
    if as_json:
        click.echo(view.to_json())
    else:
        show(view)


def print_status(text: str) -> None:
    """Print a progress message on stderr."""
    click.secho(f"· {text}", fg="cyan", err=True)


def is_forced() -> bool:
    """Return whether this command may replace the user's files."""
    return bool(click.get_current_context().meta.get(_FORCE))


def is_on_command_line(context: click.Context, name: str) -> bool:
    """Return whether an option was set on the command line."""
    return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
