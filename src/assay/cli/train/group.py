"""`assay train`: train a recipe, or resume a run."""

import os
import signal
import socket
import sys
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from assay.base.errors import ConfigError
from assay.base.json_log import is_json_log, use_log_format
from assay.base.names import shell_line
from assay.base.shown_url import without_secrets
from assay.cli.command import CommandGroup
from assay.cli.launch_target import OPTION_SECTIONS, LaunchTarget, NodeTarget, launch_target_options, print_warning
from assay.cli.parameters import (
    FILE,
    RECIPE_OR_CHANGE,
    RUN,
    WORKERS,
    current_home,
    is_on_command_line,
    json_option,
    log_format_option,
    measure_option,
    python_graders_option,
    run_and_step,
    set_python_graders,
)
from assay.elastic.workers import Workers

if TYPE_CHECKING:
    from assay.elastic.faults import FaultPlan
    from assay.elastic.supervisor import Nodes, RestartPolicy
    from assay.records.run import Run
    from assay.store.home import Home
    from assay.workflows.train import RunResult


_MODULES = {
    "new": ("assay.cli.train.new", "Write a first recipe for a dataset, with comments."),
    "import": ("assay.cli.train.new", "Turn a hosted fine-tuning job into dataset, recipe and suite."),
    "keys": ("assay.cli.train.new", "Print every key of a recipe or a pipeline."),
    "join": ("assay.cli.train.join", "Add this machine, or nodes of a cluster, to a run."),
    "stop": ("assay.cli.train.join", "Ask a run to commit and stop."),
    "resize": ("assay.cli.train.join", "Give a run on Kubernetes more or fewer nodes."),
    "pilot": ("assay.cli.train.pilot", "Compare outer optimizers in short runs, for several clusters."),
    "drill": ("assay.cli.train.drill", "Inject faults into a short run, and check its weights."),
}


_SECTIONS = {
    "Stopping and resuming": ("take_over", "other_device", "leave_within"),
    "Failures": ("after_death", "hang_s", "verify_commits", "store_retry_s", "faults"),
    "Workers and clusters": ("share", "python_graders", "cluster", "meet"),
    "Checking and logging": ("measure_s", "verbose", "log_format"),
    **OPTION_SECTIONS,
}


@click.group(cls=CommandGroup, modules=_MODULES, sections=_SECTIONS, is_brief=True, is_command=True)
@click.argument("recipe", type=RECIPE_OR_CHANGE, required=False)
@click.argument("overrides", nargs=-1)
@click.option(
    "--workers", type=WORKERS, default=1, metavar="N|A..B", help="Number of ranks, or a range: as many as fit."
)
@click.option("--resume", metavar="RUN", type=RUN, help="Continue this run from its last commit.")
@click.option("--from", "forked", metavar="RUN[@STEP]", help="Start a new run from this commit (@0: from none).")
@click.option("--check", is_flag=True, help="Print steps, time, memory, warnings; keep nothing.")
@click.option("--run-id", metavar="ID", help="Id of the new run.  [default: from name and time]")
@click.option("--store", metavar="URL", help="Store of the commits.  [default: the run's folder]")
@click.option(
    "--parallel", type=click.Choice(["ddp", "fsdp2"]), default="ddp", help="Replicate weights, or shard them."
)
@click.option("--cluster", metavar="NAME", help="This cluster's name; the recipe has outer steps (docs/outer.md).")
@click.option("--meet", metavar="URL", help="Store in which the clusters meet: each gets the others' changes there.")
@click.option("--max-restarts", default=10, metavar="N", help="Number of attempts that may die.")
@click.option(
    "--after-death",
    type=click.Choice(["same", "shrink"]),
    default="same",
    help="Number of workers after a death: the same as before, or only the survivors.",
)
@click.option(
    "--share",
    type=click.Choice(["equal", "speed"]),
    default="equal",
    help="Lanes of each worker: as equal as possible, or by speed in earlier attempts, so a slow worker gets fewer. "
    "The results are equal.",
)
@click.option(
    "--hang-after",
    "hang_s",
    default=60.0,
    metavar="SECONDS",
    help="Time without progress after which a worker counts as hung, at least ten times the longest step; "
    "15 minutes while it starts, commits or evaluates.",
)
@click.option(
    "--leave-within",
    default=600.0,
    metavar="SECONDS",
    help="Time to commit and exit after SIGTERM, before workers are killed.",
)
@click.option(
    "--verify-commits",
    type=click.IntRange(min=0),
    default=20,
    metavar="N",
    help="Read back the first commit of an attempt and every N-th one before it counts; 0: none.",
)
@click.option(
    "--store-retry",
    "store_retry_s",
    type=click.FloatRange(min=0),
    envvar="ASSAY_STORE_RETRY_S",
    default=900.0,
    metavar="SECONDS",
    help="How long the store of the commits may not answer; then leave with exit code 75: try again.",
)
@click.option(
    "--other-device",
    is_flag=True,
    help="Allow resuming on another type of processor than the last commit's; the weights will differ.",
)
@click.option(
    "--take-over",
    is_flag=True,
    help="With --resume: take over a run that a process of this machine still trains. That process cannot commit any "
    "more, and its steps since the last commit are repeated.",
)
@click.option("--faults", type=FILE, help="Fault plan (YAML) to inject; see docs/faults.md.")
@python_graders_option
@click.option(
    "--verbose",
    is_flag=True,
    help="With --check: also print the resolved recipe, and how well its order mixes the rows.",
)
@measure_option(3.0, "With --check: how long to measure real steps; 0: do not measure.")
@log_format_option
@json_option
@launch_target_options
def train(
    recipe: Path | None,
    overrides: tuple[str, ...],
    workers: Workers,
    run_id: str | None,
    resume: str | None,
    forked: str | None,
    store: str | None,
    parallel: Any,
    cluster: str | None,
    meet: str | None,
    leave_within: float,
    take_over: bool,
    faults: Path | None,
    python_graders: str | None,
    check: bool,
    measure_s: float,
    verbose: bool,
    as_json: bool,
    target: LaunchTarget,
    **restarts: Any,
) -> None:
    """Train RECIPE (YAML) with OVERRIDES (trainer.epochs=2), evaluate and audit.

    SIGTERM and Ctrl-C commit and stop. --workers and --parallel may change at every resume.
    A RECIPE with stages is a pipeline (docs/pipelines.md).
    """
    set_python_graders(python_graders)
    recipe, overrides = _split_arguments(recipe, overrides, resume, forked)
    if recipe is not None and _is_pipeline(recipe):
        _train_pipeline(recipe, overrides, workers, target, check=check, as_json=as_json)
        return
    if check and recipe is not None:
        _print_check(recipe, overrides, workers.most, measure_s, verbose=verbose, as_json=as_json)
        return
    if target.node is not None and target.node.log_file is not None:
        from assay.launchers.node_log import keep_output

        keep_output(target.node.log_file)
    target.check(workers.most)
    home = current_home()
    if resume and target.create_only:
        raise ConfigError(f"run {resume} exists: print its job with --dry-run instead of --create-only.")
    _check_names(home, overrides, resume=resume, store=store, run_id=run_id, check=check)
    _check_not_running(home, resume, target, take_over=take_over)
    new: dict[str, Any] = {"world_size": workers.most, "run_id": run_id, "store_url": store}
    new |= _cluster_of(cluster, meet, resume=resume, forked=forked)
    with _preload_ranks(target, trains=not (target.is_printed() or check or forked)):
        from assay.elastic.supervisor import RestartPolicy

        os.environ["ASSAY_STORE_RETRY_S"] = str(restarts["store_retry_s"])  # read by ranks and background processes
        plan = _fault_plan(faults)
        policy = RestartPolicy(
            **restarts, parallel=(parallel,), grace_s=leave_within, faults=plan, least_ranks=workers.least or 1
        )
        run = _select_run(home, recipe, overrides, policy, target, resume=resume, forked=forked, new=new)
        use_log_format("assay.train", run=run.run_id)
        world_size = _checked_workers(run, workers, target)
        if check:
            origin = run.parent or "its beginning"
            click.echo(f"{origin} can be forked with this recipe, to end at step {run.num_steps}; nothing was started")
            return
        names: tuple[str, ...] = ("parallel", "leave_within", "faults", "python_graders", "take_over")
        names += ("workers",) if workers.least else ()
        forwarded = (*_forwarded_options(*restarts, *names), *(("--log-format=json",) if is_json_log() else ()))
        if _start_run(home, run, world_size, target, plan, forwarded, is_new=resume is None, as_json=as_json):
            if target.node is not None:
                _train_on_nodes(home, run, workers, policy, target.node, as_json=as_json)
            else:
                _train_here(home, run, world_size, policy, as_json=as_json)


def _cluster_of(cluster: str | None, meet: str | None, *, resume: str | None, forked: str | None) -> dict[str, Any]:
    """Return the option of a new run that is to be one of several clusters; nothing for a run of its own."""
    if cluster is None and meet is None:
        return {}
    if resume or forked:
        option = f"--resume {resume}" if resume else f"--from {forked}"
        why = "the run knows its cluster and where the others meet" if resume else "all clusters begin together"
        raise ConfigError(f"{option} with --cluster or --meet: {why}. Leave them out.")
    if cluster is None or meet is None:
        raise ConfigError("--cluster NAME and --meet URL belong together: give both.")
    from assay.base.names import checked_name
    from assay.base.shown_url import refuse_secrets
    from assay.records.run import ClusterOf
    from assay.workflows.run import absolute_store

    refuse_secrets(meet, of="--meet")
    return {"cluster_of": ClusterOf(cluster=checked_name(cluster, of="--cluster"), meeting_url=absolute_store(meet))}


def _checked_workers(run: "Run", workers: Workers, target: LaunchTarget) -> int:
    """Return the number of workers; for a range on this machine, as many as fit."""
    from assay.elastic.processor import gpus_here, processor_here
    from assay.elastic.workers import check_lanes, room_here
    from assay.training.recipe import recipe_of

    recipe = recipe_of(run)
    if (warning := check_lanes(workers, recipe.loader.lanes)) is not None and target.node is None:
        print_warning(f"warning: {warning}")
    if target.is_scheduled() or target.node is not None:
        return workers.most
    return room_here(
        workers,
        num_lanes=recipe.loader.lanes,
        threads=recipe.trainer.threads_per_rank,
        num_gpus=0 if processor_here().instructions else len(gpus_here()),
        num_processors=len(os.sched_getaffinity(0)),
    )


def _start_run(
    home: "Home",
    run: "Run",
    workers: int,
    target: LaunchTarget,
    plan: "FaultPlan",
    forwarded: tuple[str, ...],
    *,
    is_new: bool,
    as_json: bool,
) -> bool:
    """Save a new run and its launch; return whether this process trains it or completes a finished run."""
    from assay.cli.launch_target import launch
    from assay.elastic.faults import check_plan
    from assay.workflows.fork import bring_commit
    from assay.workflows.run import save_run

    _check_guards(home, run, workers, target)
    if plan.faults:
        check_plan(plan, world_size=workers, num_steps=run.num_steps, num_nodes=target.num_nodes(workers))
    if target.is_scheduled():  # raises for what the scheduler cannot start, before anything is written
        scheduler = target.scheduler()
        check = scheduler.job_text if target.is_printed() else scheduler.check_run
        check(home, run, target.config(), world_size=workers, options=forwarded)
    if is_new and not target.dry_run:
        save_run(home, run)
        bring_commit(home, run)
    if not is_new and not target.dry_run and _has_finished(run):
        # A killed launch may have left evaluation and audit undone; they run here, and nothing is trained.
        return not target.is_detached()
    return not launch(home, target, run, world_size=workers, options=forwarded, as_json=as_json)


def _check_guards(home: "Home", run: "Run", workers: int, target: LaunchTarget) -> None:
    """Warn about guards, or raise; launched processes and nodes did this before."""
    if target.node is not None or target.launched:
        return
    from assay.workflows.guards import heed_guards

    for warning in heed_guards(home, run, world_size=workers, host=target.host()):
        print_warning(f"warning: {warning}. 'assay triage guard' lists all.")


def _has_finished(run: "Run") -> bool:
    """Return whether the run has finished, and print so. Raises for a copy of a run."""
    from assay.store.commit_log import CommitLog
    from assay.store.objects import open_store
    from assay.store.run_location import reject_copy
    from assay.workflows.run import finished_entry

    finished = finished_entry(CommitLog(open_store(run.store_url)))
    if finished is not None:
        reject_copy(run)
        message = f"run {run.run_id} has finished at step {finished.step}: nothing is left to train"
        message += f" ('assay train --from {run.run_id} KEY=VALUE' trains on from its weights as a new run)"
        click.echo(message, err=True)
    return finished is not None


def _is_pipeline(file: Path) -> bool:
    if not file.is_file() or "stages" not in file.read_text(encoding="utf-8", errors="replace"):
        return False
    from assay.workflows.pipeline.config import is_pipeline

    return is_pipeline(file)


def _train_pipeline(
    file: Path, overrides: tuple[str, ...], workers: Workers, target: LaunchTarget, *, check: bool, as_json: bool
) -> None:
    from assay.cli.train.pipeline import train_pipeline

    if workers.least is not None:
        raise ConfigError(f"--workers {workers}: a pipeline needs a single number of workers.")
    train_pipeline(file, overrides, workers.most, target, check=check, as_json=as_json)


def _fault_plan(file: Path | None) -> "FaultPlan":
    from assay.base.config import read_config_file, validated
    from assay.elastic.faults import NO_FAULTS, FaultPlan

    return NO_FAULTS if file is None else validated(FaultPlan, read_config_file(file, ()))


def _preload_ranks(target: LaunchTarget, *, trains: bool) -> AbstractContextManager[None]:
    """Let the fork server import torch while this process imports and checks the rest."""
    if target.on not in ("here", "nodes") or not trains:
        return nullcontext()
    from assay.elastic.fork_server import started_at_once

    if target.node is not None:
        from assay.elastic.nodes.connection import STOPPED_EARLY

        # The imports take seconds, and a node that is asked to stop meanwhile has not failed.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED_EARLY))

    return started_at_once()


def _split_arguments(
    recipe: Path | None, overrides: tuple[str, ...], resume: str | None, forked: str | None
) -> tuple[Path | None, tuple[str, ...]]:
    """Split the arguments into recipe and overrides: with --resume or --from, all of them are overrides."""
    if (resume or forked) and recipe is not None:
        recipe, overrides = None, (str(recipe), *overrides)
    if [recipe, resume, forked].count(None) != 2:
        raise ConfigError("give exactly one of: a RECIPE file, --resume RUN, --from RUN@STEP.")
    return recipe, overrides


def _check_not_running(home: "Home", resume: str | None, target: LaunchTarget, *, take_over: bool) -> None:
    """Raise `ConfigError` if the run is being trained now, unless --take-over is set."""
    if resume is None:
        if take_over or target.node is not None:
            option = "--take-over" if take_over else "--on nodes"
            raise ConfigError(f"{option} needs --resume RUN.")
        return
    from assay.base.errors import TrainingError
    from assay.launchers.launches import last_launch, state_of

    run = home.run(resume)
    if not target.launched:
        _check_no_worker(home, run, is_launched=target.node is not None)
    last = last_launch(run)
    if take_over or target.launched or target.node is not None or last is None:
        return
    if last.launcher == target.on and not last.is_process():
        return  # its launcher knows its own jobs, and waits for one that is stopping
    state = "unknown"
    with suppress(ConfigError, TrainingError):  # its scheduler may not be reachable from here
        state = state_of(last)
    if state in ("queued", "running"):
        raise ConfigError(last.conflict_text())


def _check_no_worker(home: "Home", run: "Run", *, is_launched: bool) -> None:
    """Raise `ConfigError` if the run belongs to a job of the API, which only a worker may continue."""
    if not (home.api / "ftjob" / run.run_id).is_dir():
        return
    from assay.base.clock import SystemClock
    from assay.serving.jobs import check_not_managed_job
    from assay.store.objects import open_store

    check_not_managed_job(open_store(str(home.api)), run.run_id, SystemClock(), is_launched=is_launched)


def _select_run(
    home: "Home",
    recipe: Path | None,
    overrides: tuple[str, ...],
    policy: "RestartPolicy",
    target: LaunchTarget,
    *,
    resume: str | None,
    forked: str | None,
    new: dict[str, Any],
) -> "Run":
    """Return the resumed, forked or new run, without writing anything; `new` holds the options of a new run."""
    from assay.base.config import parse_override, read_config_file
    from assay.data.dataset.dataset import Dataset
    from assay.training.recipe import recipe_of
    from assay.workflows.fork import plan_fork
    from assay.workflows.preview import check_gathered_weights_fit
    from assay.workflows.run import check_new, check_parallel, load_run, plan_run

    if resume is not None:
        return load_run(home, resume)
    if forked is not None:
        run = plan_fork(home, *run_and_step(home, forked), overrides, **new)
    else:
        assert recipe is not None
        run = plan_run(home, read_config_file(recipe, overrides), **new)
    changed = [parse_override(text)[0] for text in overrides]
    for note in check_new(recipe_of(run), Dataset.open(Path(recipe_of(run).data.dataset)), changed=changed):
        click.echo(f"note: {note}", err=True)
    check_parallel(recipe_of(run), policy.parallel, share=policy.share)
    if target.on in ("here", "background"):
        check_gathered_weights_fit(recipe_of(run), policy.parallel[0], world_size=new["world_size"])
    return run


def _print_check(
    recipe_file: Path, overrides: tuple[str, ...], workers: int, seconds: float, *, verbose: bool, as_json: bool
) -> None:
    from assay.base.config import parse_override, read_config_file
    from assay.reporting.terminal.check import check_lines
    from assay.reporting.terminal.data import order_lines
    from assay.workflows.calibration import calibrate
    from assay.workflows.preview import check_view, preview
    from assay.workflows.run import check_recipe, resolved_recipe

    loaded = read_config_file(recipe_file, overrides)
    recipe, dataset = check_recipe(loaded)
    changed = [parse_override(text)[0] for text in overrides]
    found, measured = preview(recipe, dataset, world_size=workers, changed=changed), None
    if seconds:
        click.echo(f"measuring {seconds:g} s of real steps, in a folder that is removed ...", err=True)
        measured = calibrate(loaded, world_size=workers, seconds=seconds)
    view = check_view(found, recipe, dataset, measured, world_size=workers)
    if as_json:
        click.echo(view.to_json())
        return
    mark = "# " if verbose else ""  # with the recipe printed, everything else is a YAML comment
    for line in check_lines(view):
        click.echo(f"{mark}{line}")
    if not verbose:
        click.echo("recipe       valid; --verbose prints it whole, and how well its order mixes the rows")
        return
    click.echo(resolved_recipe(recipe, loaded.origins))
    for line in order_lines(view.order, recipe.loader, mean_tokens=dataset.manifest.lengths.mean):
        click.echo(f"# {line}")


def _check_names(
    home: "Home", overrides: tuple[str, ...], *, resume: str | None, store: str | None, run_id: str | None, check: bool
) -> None:
    """Raise `ConfigError` for an id that is taken, or for options that a resumed run cannot change."""
    if resume is None:
        if run_id is not None and home.has_run(run_id):
            raise home.name_conflict(run_id)
        return
    run = home.run(resume)
    if overrides:
        raise ConfigError(
            f"'{overrides[0]}': a run's recipe never changes. Fork the run instead, from its last commit or from "
            f"RUN@STEP: 'assay train --from {run.run_id} {shell_line(*overrides)}'."
        )
    from assay.workflows.run import absolute_store

    if store is not None and absolute_store(store) != run.store_url:
        raise ConfigError(
            f"--store {without_secrets(store)}: the commits of run '{run.run_id}' are in "
            f"{without_secrets(run.store_url)}, and cannot move. Leave --store out, or start a new run with it."
        )
    if run_id not in (None, run.run_id):
        raise ConfigError(f"--run-id {run_id}: run '{run.run_id}' keeps its id. Leave --run-id out.")
    if check:
        raise ConfigError(
            "--check needs a RECIPE: the recipe of this run was checked when it started. Nothing was started."
        )


def _forwarded_options(*names: str) -> tuple[str, ...]:
    """Return the given options as command-line arguments for a process that trains elsewhere."""
    context = click.get_current_context()
    options = {option.name: option.opts[0] for option in context.command.params}
    values = {name: context.params[name] for name in names if is_on_command_line(context, name)}
    return tuple(options[name] if value is True else f"{options[name]}={value}" for name, value in values.items())


def _train_here(home: "Home", run: "Run", workers: int, policy: "RestartPolicy", *, as_json: bool) -> None:
    result, is_behind = _run_training(home, run, workers, policy)
    _print_trained(home, result, policy, is_behind=is_behind, as_json=as_json)


def _run_training(
    home: "Home", run: "Run", workers: int, policy: "RestartPolicy", nodes: "Nodes | None" = None
) -> tuple["RunResult", bool]:
    """Train the run; return its result, and whether the ledger is still behind."""
    from assay.cli.progress import ProgressObserver
    from assay.workflows.bookkeeping import writer_of
    from assay.workflows.train import train_run

    with writer_of(home, run) as writer:
        for earlier_run, suspect in writer.query(lambda ledger: ledger.suspects(socket.gethostname())) or ():
            finding = "computed wrongly" if suspect.is_certain else "may have computed wrongly"
            where = f"in run {earlier_run}, step {suspect.step}"
            warning = f"warning: {suspect.device} of this node {finding} {where}. Test it before further use."
            click.secho(warning, err=True, fg="yellow")
        with ProgressObserver(run) as progress:
            result = train_run(home, run, writer, world_size=workers, policy=policy, observers=[progress], nodes=nodes)
        if result.error is not None:
            raise result.error
    return result, writer.is_behind


def _print_trained(
    home: "Home", result: "RunResult", policy: "RestartPolicy", *, is_behind: bool, as_json: bool
) -> None:
    from assay.cli.progress import print_result
    from assay.elastic.faults import never_came

    run, last_attempt = result.run, result.last_attempt.attempt if result.last_attempt else 0
    for fault in never_came(policy.faults, Path(run.run_dir), last_attempt=last_attempt):
        click.secho(f"warning: {fault}", err=True, fg="yellow")
    if not as_json:
        print_result(result)
        return
    from assay.reporting.views.runs.run import run_view
    from assay.workflows.rebuild import ledger_of_folder

    # The run's folder has what the ledger lacks.
    with ledger_of_folder(run) if is_behind else home.open_ledger() as ledger:
        click.echo(run_view(ledger, run.run_id, has_all_metrics=True).to_json())


def _train_on_nodes(
    home: "Home", run: "Run", workers: Workers, policy: "RestartPolicy", target: NodeTarget, *, as_json: bool
) -> None:
    """Run one node of several. Exits with 0 if the run is finished, and with 75 if this node leaves it before."""
    from dataclasses import replace

    from assay.base.errors import AssayError, FencedError
    from assay.elastic.nodes.connection import STOPPED_EARLY
    from assay.elastic.nodes.group import GATHER_S, QUIET_S
    from assay.elastic.nodes.node import RunNode
    from assay.launchers.kubernetes.watch import watching_job
    from assay.launchers.slurm.drain import JobNodes, watching_drains
    from assay.store.commit_log import CommitLog
    from assay.store.objects import open_store
    from assay.workflows.train import is_complete

    log = CommitLog(open_store(run.store_url))
    node = RunNode(
        run,
        index=target.node,
        address=target.address,
        leader=target.leader,
        is_finished=lambda: is_complete(run, log),
        notify=lambda text: click.echo(text, err=True),
    )
    job_nodes = JobNodes.from_environment(os.environ)
    policy = replace(policy, wait_for_nodes_s=target.wait_for_nodes_s)
    # A single number of workers is waited for; a range begins with the nodes that are present.
    quiet_s = QUIET_S if workers.least else GATHER_S
    while (role := node.next_role()) == "leads":
        with (
            node.leading(log, ranks_per_node=target.workers_per_node, quiet_s=quiet_s) as nodes,
            watching_drains(job_nodes, on_drained=nodes.mark_drained, active_nodes=nodes.active_nodes),
            watching_job(run, os.environ),
        ):
            try:
                result, is_behind = _run_training(home, run, workers.most, policy, nodes)
            except FencedError:
                node.was_fenced()
                continue
            except AssayError as error:
                nodes.end(error.exit_code, str(error))
                raise
            if result.outcome == "moved":
                click.echo(f"run {run.run_id} continues on {result.continues_on}; this node leaves", err=True)
            else:
                _print_trained(home, result, policy, is_behind=is_behind, as_json=as_json)
            if result.outcome == "finished" or result.waits_for:
                nodes.end(STOPPED_EARLY if result.waits_for else 0, result.waits_for)
        role = "finished" if result.outcome == "finished" else "left"
        break
    if role == "left":
        click.get_current_context().exit(STOPPED_EARLY)
