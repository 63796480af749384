"""A real Phoenix, in an environment of its own, asked through its REST and GraphQL APIs.

`tests/judges/requirements-phoenix.txt` pins it. Its environment is `.venv-phoenix` in the repository, or that of the
Python that TRACED_TOOLS_PHOENIX names. The APIs: https://arize.com/docs/phoenix/sdk-api-reference
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.judges.programs import ROOT, free_port, missing, running, until
from tests.waiting import PATIENCE

_PYTHON = Path(os.environ.get("TRACED_TOOLS_PHOENIX") or ROOT / ".venv-phoenix/bin/python")
_TO_HAVE_IT = (
    "python3 -m venv .venv-phoenix && .venv-phoenix/bin/pip install -r tests/judges/requirements-phoenix.txt, "
    "or TRACED_TOOLS_PHOENIX=/path/to/its/python"
)
_ALONE = {
    "PHOENIX_HOST": "127.0.0.1",
    "PHOENIX_TELEMETRY_ENABLED": "false",
    "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
    "PHOENIX_DISABLE_AGENT_ASSISTANT": "true",
    "PHOENIX_ENABLE_MCP_SERVER": "false",
    "PHOENIX_ENABLE_AUTH": "false",
}
_SECONDS_TO_START = 120
_SECONDS_TO_STORE = 30


class Phoenix:
    """A running server.

    Attributes:
        address: where it takes OTLP over HTTP.
    """

    def __init__(self, http: httpx.Client, server: subprocess.Popen[bytes]) -> None:
        self._http, self._server = http, server
        self.address = str(http.base_url).rstrip("/")

    def spans(self, ids: set[str]) -> dict[str, Mapping[str, Any]]:
        """Return the spans with these ids, once all of them are stored."""
        return until(lambda: self._all_of(ids), _SECONDS_TO_STORE, "trace of all that was sent", self._server)

    def _all_of(self, ids: set[str]) -> dict[str, Mapping[str, Any]] | None:
        found = {span["context"]["span_id"]: span for span in self._pages()}
        return {each: found[each] for each in ids} if ids <= found.keys() else None

    def _pages(self) -> Iterator[Mapping[str, Any]]:
        cursor: dict[str, str] = {}
        while True:
            answer = self._http.get("/v1/projects/default/spans", params={"limit": "1000", **cursor})
            if answer.status_code == 404:
                return  # the project comes with its first span
            assert answer.is_success, answer.text
            body = answer.json()
            yield from body["data"]
            if body["next_cursor"] is None:
                return
            cursor = {"cursor": body["next_cursor"]}

    def ask(self, query: str, **variables: Any) -> Any:
        """Return what the GraphQL API has on a query."""
        answer = self._http.post("/graphql", json={"query": query, "variables": variables})
        assert answer.is_success, answer.text
        assert "errors" not in answer.json(), answer.text
        return answer.json()["data"]


@contextmanager
def phoenix_running(folder: Path) -> Iterator[Phoenix]:
    """Run Phoenix on a free port of this machine, with its files in `folder`."""
    if not _PYTHON.is_file():
        missing(f"Phoenix is not here: {_TO_HAVE_IT}")
    port = str(free_port())
    variables = {**_ALONE, "PHOENIX_PORT": port, "PHOENIX_WORKING_DIR": str(folder), "HOME": str(folder)}
    command = [str(_PYTHON), "-I", str(Path(__file__).with_name("phoenix_alone.py")), "serve"]
    with (
        running(command, folder, variables) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as http,
    ):
        until(lambda: http.get("/healthz").is_success, _SECONDS_TO_START, "Phoenix that is ready", server)
        yield Phoenix(http, server)
