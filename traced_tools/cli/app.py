"""The typer application with its top-level commands."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from traced_tools._version import __version__
from traced_tools.cli.audit.commands import app as audit
from traced_tools.cli.demo.run import run_demo
from traced_tools.errors import TracedToolsError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(audit, name="audit")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"traced-tools {__version__}")
        raise typer.Exit


@app.callback()
def traced_tools(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A tool-calling loop for agents in which every step is an OpenTelemetry span."""


@app.command()
def demo() -> None:
    """Run a small agent against a local server and show its trace; with OPENAI_API_KEY or OPENAI_BASE_URL, that API."""
    try:
        run_demo(Console())
    except TracedToolsError as error:
        typer.echo(f"demo: {error}", err=True)
        typer.echo("Unset OPENAI_API_KEY and OPENAI_BASE_URL to run the demo against its own local server.", err=True)
        raise typer.Exit(1) from None
