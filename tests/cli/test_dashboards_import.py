"""`traced-tools dashboards import` against a stand-in of Grafana's API on 127.0.0.1."""

from __future__ import annotations

import gzip
import json
import ssl
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import trustme
from typer.testing import CliRunner, Result

from tests.judges.programs import ROOT, free_port
from traced_tools.cli.app import app
from traced_tools.testing import Received, ReplayServer, Reply

TOKEN = "glsa_0123456789secret"
BOARDS = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "dashboards/classic").glob("*.json"))}


class Stand:
    """The folders and boards of a Grafana, which checks the token and answers as the API documents.

    Attributes:
        folders: the titles by uid.
        boards: the saved boards by uid.
        refusals: replies by path, instead of the usual ones.
        conflict: the status for a folder that exists.
    """

    def __init__(self) -> None:
        self.folders: dict[str, str] = {}
        self.boards: dict[str, dict[str, Any]] = {}
        self.refusals: dict[str, Reply] = {}
        self.conflict = 409

    def __call__(self, request: Received) -> Reply:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return Reply.json({"message": "Invalid API key"}, 401)
        if (refusal := self.refusals.get(request.path)) is not None:
            return refusal
        match request.method, request.path:
            case "POST", "/grafana/api/folders":
                return self._create_folder(request.json())
            case "GET", path if (uid := path.removeprefix("/grafana/api/folders/")) in self.folders:
                return Reply.json({"uid": uid, "title": self.folders[uid]})
            case "POST", "/grafana/api/dashboards/db":
                return self._save(request.json())
        return Reply.json({"message": "Not found"}, 404)

    def _create_folder(self, folder: dict[str, str]) -> Reply:
        if folder["uid"] in self.folders or folder["title"] in self.folders.values():
            return Reply.json({"message": "a folder with the name already exists"}, self.conflict)
        self.folders[folder["uid"]] = folder["title"]
        return Reply.json({"id": 1, **folder})

    def _save(self, body: dict[str, Any]) -> Reply:
        board = body["dashboard"]
        if body["folderUid"] not in self.folders:
            return Reply.json({"message": "folder not found"}, 400)
        if board["uid"] in self.boards and body["overwrite"] is not True:
            return Reply.json({"message": "changed", "status": "version-mismatch"}, 412)
        self.boards[board["uid"]] = board
        return Reply.json({"uid": board["uid"], "status": "success", "url": f"/grafana/d/{board['uid']}/slug"})


@contextmanager
def grafana(stand: Callable[[Received], Reply]) -> Iterator[ReplayServer]:
    with ReplayServer(stand) as server:
        yield server


def imported(url: str, *arguments: str, **environment: str) -> Result:
    """Run the command, by default with the token in the environment; it never shows it."""
    command = ["dashboards", "import", "--grafana-url", url, *arguments]
    run = CliRunner().invoke(app, command, env={"GRAFANA_TOKEN": TOKEN, "COLUMNS": "120", **environment})
    assert run.exception is None or isinstance(run.exception, SystemExit)
    assert "secret" not in run.stdout + run.stderr
    return run


def refused(reply: Reply, path: str = "/grafana/api/dashboards/db") -> str:
    """Return the error if Grafana gives this reply; it is one line, and the exit status is 1."""
    stand = Stand()
    stand.refusals[path] = reply
    with grafana(stand) as server:
        run = imported(f"{server.url}/grafana")
    assert run.exit_code == 1
    assert run.stderr.startswith("dashboards: ")
    assert run.stderr.count("\n") == 1
    return run.stderr


def test_the_boards_are_saved_in_a_folder_as_the_files_have_them() -> None:
    stand = Stand()
    with grafana(stand) as server:
        run = imported(f"{server.url}/grafana/")
        calls = [(request.method, request.path) for request in server.requests]
        folder, *saved = [request.json() for request in server.requests]
        types = {request.headers["Content-Type"] for request in server.requests}
    assert run.exit_code == 0, run.stderr
    assert calls == [("POST", "/grafana/api/folders"), *[("POST", "/grafana/api/dashboards/db")] * len(BOARDS)]
    assert types == {"application/json"}
    assert folder == {"uid": "traced-tools", "title": "traced_tools"}
    assert [body["dashboard"] for body in saved] == [{**board, "id": None} for board in BOARDS.values()]
    assert {(body["folderUid"], body["overwrite"]) for body in saved} == {("traced-tools", True)}
    assert run.stdout.splitlines() == [f"{server.url}/grafana/d/{uid}" for uid in BOARDS]


def test_data_sources_stay_variables() -> None:
    stand = Stand()
    with grafana(stand) as server:
        imported(f"{server.url}/grafana")
    panels = [panel for board in stand.boards.values() for panel in board["panels"] if panel["type"] != "row"]
    sources = {target["datasource"]["uid"] for panel in panels for target in panel["targets"]}
    assert sources <= {"${prometheus}", "${tempo}", "${loki}"}
    assert "${prometheus}" in sources


@pytest.mark.parametrize("conflict", [409, 412])
def test_a_second_import_replaces_the_boards_in_the_same_folder(conflict: int) -> None:
    stand = Stand()
    stand.conflict = conflict
    with grafana(stand) as server:
        first, second = (imported(f"{server.url}/grafana") for _ in range(2))
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert first.stdout == second.stdout
    assert stand.folders == {"traced-tools": "traced_tools"}
    assert stand.boards.keys() == BOARDS.keys()


def test_a_folder_of_the_same_name_with_another_uid_is_an_error() -> None:
    stand = Stand()
    stand.folders["mine"] = "traced_tools"
    with grafana(stand) as server:
        run = imported(f"{server.url}/grafana")
    assert run.exit_code == 1
    assert "folder traced_tools: Grafana has another folder of this name" in run.stderr
    assert stand.boards == {}


def test_the_option_passes_the_token_as_well() -> None:
    with grafana(Stand()) as server:
        run = imported(f"{server.url}/grafana", "--token", TOKEN, GRAFANA_TOKEN="other")
    assert run.exit_code == 0, run.stderr


def test_an_invalid_token_is_refused_with_what_to_pass() -> None:
    with grafana(Stand()) as server:
        run = imported(f"{server.url}/grafana", GRAFANA_TOKEN="other_secret")
    assert run.exit_code == 1
    assert "folder traced_tools: Grafana refuses the token" in run.stderr
    assert "(401: Invalid API key)" in run.stderr


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply.json({"message": "denied"}, 403), "give its service account the role Editor (403: denied)"),
        (Reply.json({"message": "Not found"}, 404), "pass Grafana's address with its path"),
        (Reply.json({"message": "Cannot save provisioned dashboard"}, 400), "Grafana loads it from a file"),
        (Reply.json({"message": "bad"}, 400), "Grafana refuses the request (400: bad)"),
        (Reply.json({"status": "version-mismatch"}, 412), "another user has changed it"),
        (Reply.json({"status": "name-exists"}, 412), "rename or delete that board"),
        (Reply.json({"status": "plugin-dashboard"}, 412), "belongs to a plugin"),
        (Reply.json({"status": "other", "message": "why"}, 412), "Grafana refuses the request (412: why)"),
        (Reply.json({}, 503), "try again later"),
        (Reply(b"<html>", 200), "is not that of Grafana"),
        (Reply.json({"uid": "another"}, 200), "is not that of Grafana"),
        (Reply(b"", 302, {"Location": "https://host/login"}), "redirects to https://host/login"),
    ],
    ids=lambda value: f"{value.status}" if isinstance(value, Reply) else None,
)
def test_an_error_names_the_board_and_says_what_to_do(reply: Reply, said: str) -> None:
    error = refused(reply)
    assert error.startswith(f"dashboards: board {next(iter(BOARDS))}: ")
    assert said in error


DEEP = b"[" * 200_000
LARGE = b'{"uid": "' + b"x" * 2_000_000 + b'"}'
BOMB = gzip.compress(b"{" + b" " * 50_000_000, 1)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(body=DEEP), "is not that of Grafana: pass Grafana's address"),
        (Reply(body=DEEP, status=500), "Grafana has a problem"),
        (Reply(body=LARGE), "has more than 1024 KiB, so it is not that of Grafana"),
        (
            Reply(body=BOMB, headers={"Content-Encoding": "gzip"}),
            "has more than 1024 KiB, so it is not that of Grafana",
        ),
        (Reply(body=BOMB, status=500, headers={"Content-Encoding": "gzip"}), "has more than 1024 KiB"),
        (Reply(body=b"no gzip", headers={"Content-Encoding": "gzip"}), "is not that of Grafana"),
        (Reply(body=b"{}", headers={"Content-Encoding": "br"}), "is not that of Grafana"),
    ],
    ids=["deep", "deep error", "large", "bomb", "bomb error", "no gzip", "brotli"],
)
def test_a_deep_large_or_compressed_answer_is_refused_within_bounds(reply: Reply, said: str) -> None:
    tracemalloc.start()
    try:
        message = refused(reply)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert said in message
    assert peak < 20_000_000


def test_a_compressed_answer_of_grafana_is_read() -> None:
    stand = Stand()

    def compressed(request: Received) -> Reply:
        reply = stand(request)
        return replace(reply, body=gzip.compress(reply.body), headers={"Content-Encoding": "gzip"})

    with grafana(compressed) as server:
        assert imported(f"{server.url}/grafana").exit_code == 0
    assert stand.boards.keys() == BOARDS.keys()


def test_a_folder_that_may_not_be_created_is_an_error() -> None:
    error = refused(Reply.json({"message": "no"}, 403), "/grafana/api/folders")
    assert error.startswith("dashboards: folder traced_tools: the token may not do this")


def test_the_texts_of_a_server_neither_repeat_the_token_nor_move_the_cursor() -> None:
    error = refused(Reply.json({"message": f"\x1b[2J Bearer {TOKEN}\n"}, 400))
    assert "[token]" in error
    assert "\x1b" not in error
    assert "[token]" in refused(Reply(b"", 302, {"Location": f"/login?auth={TOKEN}"}))


def test_the_path_of_the_address_is_kept() -> None:
    with grafana(Stand()) as server:
        run = imported(server.url)
    assert run.exit_code == 1
    assert "pass Grafana's address with its path" in run.stderr


def test_a_server_that_is_not_there_is_named() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    run = imported(url)
    assert run.exit_code == 1
    assert f"{url} cannot be reached (ConnectError)" in run.stderr


def test_an_untrusted_certificate_is_an_error_and_a_trusted_one_is_not(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    asked: list[str] = []

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.headers["Authorization"])
            self.send_error(401)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Quiet(HTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that does not trust the certificate

    with Quiet(("127.0.0.1", 0), Refusing) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever)
        thread.start()
        url = f"https://localhost:{server.server_port}"
        try:
            untrusted = imported(url)
            sent_before = list(asked)
            trusted = imported(url, SSL_CERT_FILE=str(tmp_path / "ca.pem"))
        finally:
            server.shutdown()
            thread.join()
    assert untrusted.exit_code == 1
    assert f"the certificate of {url} is not trusted" in untrusted.stderr
    assert sent_before == []
    assert "Grafana refuses the token" in trusted.stderr
    assert asked == [f"Bearer {TOKEN}"]


@pytest.mark.parametrize(
    "url",
    ["ftp://host", "host:3000", "https://", "http://host:port", "http://u:secret@host", "http://host?key=secret", ""],
)
def test_an_address_that_cannot_be_used_is_not_repeated(url: str) -> None:
    run = imported(url)
    assert run.exit_code == 2
    assert "dashboards: --grafana-url " in run.stderr


@pytest.mark.parametrize("token", ["", " ", "secret\nX-Other: 1", "secret two", "secreté"])
def test_a_token_that_no_header_can_carry_is_not_repeated(token: str) -> None:
    run = imported("http://127.0.0.1:1", GRAFANA_TOKEN=token)
    assert run.exit_code == 2
    assert "token" in run.stderr


def test_the_help_does_not_show_the_token() -> None:
    run = imported("http://host", "--help")
    assert run.exit_code == 0
    assert "GRAFANA_TOKEN" in run.stdout
