"""`traced-tools demo`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from traced_tools.demo.load import run_load
from traced_tools.demo.run import run_demo
from traced_tools.errors import TracedToolsError

app = typer.Typer(add_completion=False)
_OF_LOAD = "With --load"


@app.command()
def demo(
    with_hooks: Annotated[bool, typer.Option("--all", help="Show each hook in the tree of spans.")] = False,
    load: Annotated[
        bool, typer.Option("--load", help="Instead, run agents with every outcome, and send their telemetry.")
    ] = False,
    otlp: Annotated[
        str | None,
        typer.Option(metavar="URL", rich_help_panel=_OF_LOAD, help="The collector that the telemetry is sent to."),
    ] = None,
    prometheus: Annotated[
        int | None,
        typer.Option(metavar="PORT", rich_help_panel=_OF_LOAD, help="The port of 127.0.0.1 that serves the metrics."),
    ] = None,
    duration: Annotated[
        float, typer.Option(metavar="SECONDS", rich_help_panel=_OF_LOAD, help="The time in which runs start.")
    ] = 60.0,
    rate: Annotated[
        float, typer.Option(metavar="RUNS_PER_SECOND", rich_help_panel=_OF_LOAD, help="Runs that start per second.")
    ] = 5.0,
    seed: Annotated[
        int, typer.Option(min=0, rich_help_panel=_OF_LOAD, help="Decides what the runs do, and in which order.")
    ] = 0,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", rich_help_panel=_OF_LOAD, help="An outcome that is left out. Repeatable."),
    ] = None,
) -> None:
    """Run a small agent against a local server and show its trace; with OPENAI_API_KEY or OPENAI_BASE_URL, that API."""
    if load:
        try:
            run_load(
                Console(),
                otlp=otlp,
                prometheus=prometheus,
                duration=duration,
                rate=rate,
                seed=seed,
                without=without or (),
            )
        except (TracedToolsError, ValueError) as error:
            typer.echo(f"demo: {error}", err=True)
            raise typer.Exit(2) from None
        return
    if otlp is not None or prometheus is not None or without:
        typer.echo("demo: --otlp, --prometheus and --without need --load", err=True)
        raise typer.Exit(2)
    try:
        run_demo(Console(), with_hooks=with_hooks)
    except TracedToolsError as error:
        typer.echo(f"demo: {error}", err=True)
        typer.echo("Unset OPENAI_API_KEY and OPENAI_BASE_URL to run the demo against its own local server.", err=True)
        raise typer.Exit(1) from None
