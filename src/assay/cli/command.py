"""Groups that import a command when it is called, and help that lists options under headings."""

import importlib
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

OPTIONS = "Options"
_HELP_ALL = "assay.help_all"


def _loaded(module: str, name: str) -> click.Command:
    """Import a command. If its name is a word of Python, it has a trailing underscore in its module: `eval_`."""
    loaded = importlib.import_module(module)
    attribute = name.replace("-", "_")
    command: click.Command = getattr(loaded, f"{attribute}_", None) or getattr(loaded, attribute)
    return command


def _explain_all(context: click.Context, _: click.Parameter, is_set: bool) -> None:
    if is_set:
        context.meta[_HELP_ALL] = True
        click.echo(context.get_help())
        context.exit()


class Command(click.Command):
    """A command whose help lists options under headings."""

    def __init__(
        self, *args: Any, sections: Mapping[str, Sequence[str]] | None = None, is_brief: bool = False, **kwargs: Any
    ) -> None:
        """`sections`: the parameters under each heading; the others stand first. If `is_brief`, the help only names
        the options under headings, and --help-all explains them."""
        super().__init__(*args, **kwargs)
        self._sections = sections or {}
        self._is_brief = is_brief
        if is_brief:
            self.params.append(
                click.Option(
                    ["--help-all"], is_flag=True, is_eager=True, expose_value=False, hidden=True, callback=_explain_all
                )
            )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lists = dict(self._option_lists(ctx))
        self._write_options(ctx, formatter, OPTIONS, lists.pop(OPTIONS))
        if self._is_brief and not ctx.meta.get(_HELP_ALL):
            with formatter.section(f"More options, which '{ctx.command_path} --help-all' explains"):
                targets = [heading for heading in lists if heading.startswith("--on ")]
                names = [
                    f"{heading}: {' '.join(option.opts[0] for option in options)}"
                    for heading, options in lists.items()
                    if heading not in targets
                ]
                names += [f"Of a target: {', '.join(targets)}"] if targets else []
                for text in names:
                    for line in textwrap.wrap(text, formatter.width - 2, break_on_hyphens=False):
                        formatter.write(f"  {line}\n")
        else:
            for heading, options in lists.items():
                self._write_options(ctx, formatter, heading, options)

    def _option_lists(self, ctx: click.Context) -> Iterator[tuple[str, list[click.Option]]]:
        """Yield each heading with its options."""
        options = {str(option.name): option for option in self.get_params(ctx) if isinstance(option, click.Option)}
        under_heading = {heading: [options.pop(name) for name in names] for heading, names in self._sections.items()}
        yield OPTIONS, list(options.values())
        yield from under_heading.items()

    @staticmethod
    def _write_options(
        ctx: click.Context, formatter: click.HelpFormatter, heading: str, options: Sequence[click.Option]
    ) -> None:
        with formatter.section(heading):
            formatter.write_dl([record for option in options if (record := option.get_help_record(ctx))])


class CommandGroup(Command, click.Group):
    """A group of commands in other modules, each imported when it is called.

    A group with a `default` runs this command if the first argument names none. A group that is a command is
    itself that default: `assay train RECIPE` trains, and `assay train join RUN` is another command.
    """

    command_class = Command

    def __init__(
        self,
        *args: Any,
        modules: Mapping[str, tuple[str, str]],
        default: str | None = None,
        is_command: bool = False,
        **kwargs: Any,
    ) -> None:
        """`modules`: name of a command -> its module, and its line in the help of the group."""
        super().__init__(*args, **kwargs)
        self._modules = modules
        self._default = default
        self.is_command = is_command
        if is_command:
            self.allow_extra_args, self.allow_interspersed_args = False, True
            self.no_args_is_help, self.subcommand_metavar = False, ""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._modules and cmd_name not in self.commands:
            self.commands[cmd_name] = _loaded(self._modules[cmd_name][0], cmd_name)
        return super().get_command(ctx, cmd_name)

    def names_command(self, args: Sequence[str]) -> bool:
        """Return whether the first argument names a command of this group."""
        return bool(args) and args[0] in self._modules

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if self.is_command:
            if self.names_command(args):
                ctx.args = list(args)
                return ctx.args
            return click.Command.parse_args(self, ctx, args)
        is_help = bool(args) and args[0] in ctx.help_option_names
        if self._default and not is_help and not self.names_command(args):
            args = [self._default, *args]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        if not self.is_command:
            return super().invoke(ctx)
        if not ctx.args:
            return click.Command.invoke(self, ctx)
        name, command, args = self.resolve_command(ctx, ctx.args)
        assert command is not None
        # A sibling of this context: help shows "assay train join RUN", without the arguments of 'assay train'.
        with command.make_context(f"{ctx.info_name} {name}", args, parent=ctx.parent) as sub_context:
            return command.invoke(sub_context)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_usage(ctx, formatter)
        if self.is_command:
            formatter.write_text(f"       {ctx.command_path} COMMAND ...")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self._modules.items()])
