"""The typer application with its top-level commands."""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from traced_tools._version import __version__


class _LateCommand(TyperCommand):
    """A command, or a group of commands, whose module is imported when it is called.

    Args:
        name: the name of the command.
        module: the module whose `app` is the command.
        help: what the list of commands says of it, without importing the module.
    """

    def __init__(self, name: str, module: str, help: str) -> None:
        super().__init__(name, help=help)
        self._module = module

    @cached_property
    def command(self) -> Any:
        """The command itself."""
        return typer.main.get_command(import_module(self._module).app)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.command.make_context(info_name, args, parent, **extra)


COMMANDS: Final = (
    _LateCommand(
        "doctor",
        "traced_tools.cli.doctor.command",
        "Check versions and variables, and whether collectors, model servers, stores and MCP servers answer.",
    ),
    _LateCommand(
        "demo",
        "traced_tools.demo.command",
        "Run a small agent against a local server and show its trace; "
        "with OPENAI_API_KEY or OPENAI_BASE_URL, that API.",
    ),
    _LateCommand(
        "approvals", "traced_tools.cli.approvals.commands", "Decide about tool calls that wait in a pending store."
    ),
    _LateCommand(
        "audit",
        "traced_tools.cli.audit.commands",
        "Read the audit trail: what models wanted to do, who allowed it, and why.",
    ),
    _LateCommand(
        "dashboards",
        "traced_tools.cli.dashboards.commands",
        "Export the dashboards and rules as files, or import them into Grafana.",
    ),
    _LateCommand(
        "mcp", "traced_tools.cli.mcp.commands", "Serve tools to MCP clients, or decide about calls of a server."
    ),
    _LateCommand("policy", "traced_tools.cli.policy.commands", "Check policies before you use them."),
    _LateCommand("runs", "traced_tools.cli.runs.commands", "See, drive and withdraw durable runs in a pending store."),
)


class _Commands(TyperGroup):
    """The group of all commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for command in COMMANDS:
            self.add_command(command)


app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"traced-tools {__version__}")
        raise typer.Exit


@app.callback()
def traced_tools(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A tool-calling loop for agents in which every step is an OpenTelemetry span."""
