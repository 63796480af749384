"""The command line: `traced-tools`."""

from __future__ import annotations

import sys

from traced_tools.cli.output import whole_output


def main() -> None:
    """Run the command line. If its extra is not installed, print how to install it and exit with status 2."""
    try:
        from traced_tools.cli.app import app

        with whole_output():
            app()
    except ModuleNotFoundError as error:
        if error.name not in ("rich", "typer"):
            raise
        print("The command line needs the extra `cli`: pip install 'traced_tools[cli]'", file=sys.stderr)
        sys.exit(2)  # 1 is a verdict of `audit verify`
