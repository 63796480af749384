"""Programs that somebody else instruments, in an environment of their own.

`tests/judges/requirements-instrumented.txt` pins it: logfire adds a plugin to pydantic, and the instrumentations pin
the SDK, neither of which may affect other tests. The environment is `.venv-instrumented` in the repository, or that of
the Python that TRACED_TOOLS_INSTRUMENTED names.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.judges.programs import ROOT, environment, missing

_PYTHON = Path(os.environ.get("TRACED_TOOLS_INSTRUMENTED") or ROOT / ".venv-instrumented/bin/python")
_TO_HAVE_IT = (
    "python3 -m venv .venv-instrumented && .venv-instrumented/bin/pip install -r "
    "tests/judges/requirements-instrumented.txt, or TRACED_TOOLS_INSTRUMENTED=/path/to/its/python"
)
_SECONDS_TO_RUN = 120


def python(*, instrumented: bool = False) -> list[str]:
    """Return the command of that environment's Python, which `opentelemetry-instrument` runs if `instrumented`."""
    if not _PYTHON.is_file():
        missing(f"logfire and the instrumentations are not here: {_TO_HAVE_IT}")
    return [str(_PYTHON.with_name("opentelemetry-instrument")), str(_PYTHON)] if instrumented else [str(_PYTHON)]


def printed_by(module: str, *arguments: str, instrumented: bool = False, **variables: str) -> Any:
    """Run a module in that environment and return its last line, parsed as JSON; the module must print no warning.

    Args:
        module: such as `tests.judges.logfire_app`.
        arguments: for it.
        instrumented: whether `opentelemetry-instrument` runs it.
        variables: for its environment.
    """
    done = subprocess.run(
        [*python(instrumented=instrumented), "-m", module, *arguments],
        cwd=ROOT,
        env=environment({"PYTHONPATH": str(ROOT), **variables}),
        capture_output=True,
        text=True,
        timeout=_SECONDS_TO_RUN,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "traced_tools" not in done.stderr, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])
