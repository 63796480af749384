"""The programs of a recipe's page, run against a model service and a collector on 127.0.0.1.

A fence with a second word, such as `app.py`, is a file of the program, which a test writes and runs. What `.[dev]`
lacks is in `.venv-recipes` in the repository, or in the environment of the Python that TRACED_TOOLS_RECIPES names.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.judges.programs import ROOT, environment, free_port, missing, running, until
from tests.otel.collector import Collector, collecting
from tests.test_docs import weather_service
from traced_tools.testing import Received, ReplayServer, Reply

PYTHON = Path(os.environ.get("TRACED_TOOLS_RECIPES") or ROOT / ".venv-recipes/bin/python")
FILE = re.compile(r"^```\w+ ([\w/.]+\.\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SECONDS_TO_ANSWER = 60


class Stage:
    """The folder with the files of a page, and the services that its programs use.

    Attributes:
        folder: where the programs run.
        collector: what received their telemetry.
        models: the service that their model is behind.
        variables: their environment variables.
    """

    def __init__(self, page: str, folder: Path, collector: Collector, models: ReplayServer) -> None:
        self.folder = folder
        self.collector = collector
        self.models = models
        self.variables = {
            "OPENAI_BASE_URL": f"{models.url}/v1",
            "OPENAI_API_KEY": "none",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "XDG_RUNTIME_DIR": str(folder),  # where gunicorn has a socket
        }
        for name, text in FILE.findall((ROOT / "docs" / "recipes" / page).read_text()):
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    @contextmanager
    def served(self, *command: str) -> Iterator[tuple[httpx.Client, subprocess.Popen[bytes]]]:
        """Run a web server on a free port, which takes the place of PORT in the command, until the block ends."""
        port = free_port()
        with running([part.replace("PORT", str(port)) for part in command], self.folder, self.variables) as process:
            with httpx.Client(
                base_url=f"http://127.0.0.1:{port}", timeout=_SECONDS_TO_ANSWER, trust_env=False
            ) as client:
                until(lambda: client.get("/no-such-page"), _SECONDS_TO_ANSWER, "answer of the web server", process)
                yield client, process

    def run(self, *command: str) -> str:
        """Run a program to its end, and return what it prints to stdout; it must succeed."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=environment(self.variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS_TO_ANSWER,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    def log(self) -> str:
        """Return what the program that ran last has logged."""
        return (self.folder / "log.txt").read_text()

    def spans(self, name: str) -> list[Any]:
        """Return the spans with a name that the collector has received."""
        return [span for span in self.collector.spans() if span.name == name]

    def resources(self) -> list[dict[str, str]]:
        """Return the attributes of the resource of each request with spans."""
        return [
            {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
            for request in self.collector.requests("/v1/traces")
            for resource in request.resource_spans
        ]


@contextmanager
def staged(page: str, folder: Path, service: Callable[[Received], Reply] = weather_service) -> Iterator[Stage]:
    """Write the files of a page into a folder, and run the services that they need until the block ends."""
    with collecting() as collector, ReplayServer(service) as models:
        yield Stage(page, folder, collector, models)


def attributes(span: Any) -> dict[str, str]:
    """Return the attributes of a span that are texts."""
    return {each.key: each.value.string_value for each in span.attributes}


def python() -> str:
    """Return the Python of the recipes' own environment, which has gunicorn, Django and Celery."""
    if not PYTHON.is_file():
        missing(
            "gunicorn, Django and Celery are not here: python3 -m venv .venv-recipes && .venv-recipes/bin/pip install "
            "-r tests/judges/requirements-recipes.txt, or TRACED_TOOLS_RECIPES=/path/to/its/python"
        )
    return str(PYTHON)


OURS = sys.executable
"""The Python of this environment, which has FastAPI and uvicorn."""
