"""Tools that are pinned: a server that changes what it says of them is found out."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from mcp_types import Tool, ToolAnnotations

from tests.audit.commanded import printed
from tests.mcp.servers import raw_server, tools_of
from tests.mcp.test_runs import calling
from tests.modes import MODES, run
from traced_tools import AuditAdvisor, ConfigurationError, ToolCall
from traced_tools.audit import AuditTrail, read_verified
from traced_tools.audit.records import AuditRecord
from traced_tools.errors import McpToolsChanged
from traced_tools.mcp.pinning import PinFile

TOOL = Tool(name="read", description="Reads.", input_schema={"type": "object"})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"description": "Reads, and sends it to me."}, "read: description"),
        ({"input_schema": {"type": "object", "properties": {"to": {}}}}, "read: input_schema"),
        ({"output_schema": {"type": "object"}}, "read: output_schema"),
        ({"annotations": ToolAnnotations(read_only_hint=True)}, "read: annotations"),
        ({"name": "write"}, "write: new"),
    ],
)
def test_each_change_is_an_error_that_names_it(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    pins = PinFile(tmp_path / "tools.lock")
    pins.check("files", [TOOL])
    pins.check("files", [TOOL])
    with pytest.raises(McpToolsChanged, match=r"other tools than tools\.lock has pinned") as caught:
        pins.check("files", [TOOL.model_copy(update=change)])
    assert caught.value.changes == (named,)


def test_a_removed_tool_and_another_server_are_no_changes(tmp_path: Path) -> None:
    pins = PinFile(tmp_path / "tools.lock")
    pins.check("files", [TOOL])
    pins.check("search", [TOOL])
    pins.check("files", [])
    assert [*json.loads((tmp_path / "tools.lock").read_text())["servers"]] == ["files", "search"]


def test_the_error_does_not_advise_to_lose_what_is_pinned_of_other_servers(tmp_path: Path) -> None:
    path = tmp_path / "tools.lock"
    PinFile(path).check("files", [TOOL])
    with pytest.raises(McpToolsChanged, match="remove 'files' from the file to pin them"):
        PinFile(path).check("files", [TOOL.model_copy(update={"name": "write"})])


@pytest.mark.parametrize("text", [b"", b"[]", b'{"servers": {"files": 1}}', b"\xff"])
def test_a_file_that_cannot_be_read_is_an_error_and_stays(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tools.lock"
    path.write_bytes(text)
    with pytest.raises(ConfigurationError, match="is not a file of pinned tools"):
        PinFile(path).check("files", [TOOL])
    assert path.read_bytes() == text


def test_a_folder_that_is_missing_and_a_file_that_is_a_folder_are_errors_that_say_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be written to .*missing/tools\.lock: No such file"):
        PinFile(tmp_path / "missing" / "tools.lock").check("files", [TOOL])
    with pytest.raises(ConfigurationError, match=r"cannot be read: Is a directory"):
        PinFile(tmp_path).check("files", [TOOL])


def test_what_another_process_pins_meanwhile_is_kept_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins, other = PinFile(tmp_path / "tools.lock"), PinFile(tmp_path / "tools.lock")
    read = pins._read

    def read_before_the_other_process() -> dict[str, dict[str, Any]]:
        servers = read()
        if not servers:
            other.check("search", [TOOL])
            other.check("files", [TOOL.model_copy(update={"description": "Reads nothing."})])
        return servers

    monkeypatch.setattr(pins, "_read", read_before_the_other_process)
    with pytest.raises(McpToolsChanged, match="read: description"):
        pins.check("files", [TOOL])
    assert {*json.loads((tmp_path / "tools.lock").read_text())["servers"]} == {"files", "search"}


def test_a_file_that_is_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    link, kept = tmp_path / "tools.lock", tmp_path / "kept.json"
    link.symlink_to(kept)
    PinFile(link).check("files", [TOOL])
    assert link.is_symlink()
    assert [*json.loads(kept.read_text())["servers"]] == ["files"]


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_a_new_file_is_private_and_one_that_others_can_change_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tools.lock"
    PinFile(path).check("files", [TOOL])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert caplog.messages == []
    path.chmod(0o666)
    for _ in range(2):
        PinFile(path).check("files", [TOOL])
    (text,) = caplog.messages
    assert f"{path} may be written by others (mode 666), who can change the pinned tools" in text


@pytest.mark.skipif(os.name != "posix", reason="links are POSIX's")
def test_a_link_that_another_user_prepared_beside_the_file_is_not_followed(tmp_path: Path) -> None:
    path, other = tmp_path / "tools.lock", tmp_path / "other"
    other.write_text("kept")
    path.with_name(f"tools.lock.{os.getpid()}").symlink_to(other)
    PinFile(path).check("files", [TOOL])
    assert (other.read_text(), path.is_symlink()) == ("kept", False)


def fields_of(record: AuditRecord) -> dict[str, Any]:
    """Return what a record says of changed tools."""
    fields = json.loads(record.body)
    return {name: fields[name] for name in ("source", "changes", "refused")}


def pinned(path: Path) -> Path:
    """Write the file as if the server had described `echo` in another way, and had no `counts`."""
    with raw_server(pin=path) as toolset:
        tools_of(toolset)
    pins = json.loads(path.read_text())
    pins["servers"]["raw"]["echo"]["description"] = "0" * 64
    del pins["servers"]["raw"]["counts"]
    path.write_text(json.dumps(pins))
    return path


@pytest.mark.parametrize("mode", MODES)
def test_changed_tools_that_are_a_warning_are_in_the_log_once_and_in_the_audit_trail(
    mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, calls = tmp_path / "audit.db", [ToolCall("echo", {"text": "x"}), ToolCall("counts"), ToolCall("a_b")]
    path = pinned(tmp_path / "tools.lock")
    text = path.read_text()
    with AuditTrail(store) as trail:
        with raw_server(pin=path, on_change="warn") as toolset:
            for _ in range(2):
                response = run(mode, calling(*calls, advisors=[AuditAdvisor(trail)]).prompt("?", tools=[toolset]))
                assert [result.outcome for result in response.tool_results] == ["ok"] * 3
        assert trail.flush()
    warnings = [each.getMessage() for each in caplog.records if each.name == "traced_tools.mcp.pinning"]
    assert len(warnings) == 1
    assert "offers other tools than tools.lock has pinned: echo: description, counts: new" in warnings[0]
    assert path.read_text() == text
    with read_verified(store) as reader:
        found = [
            (intent["tool"], intent.get("pin_changes")) for call in reader.calls() for intent in [call.fields("intent")]
        ]
        run_id = reader.calls()[0].run_id
        (record,) = reader.run(run_id).tool_changes
    changes = ["echo: description", "counts: new"]
    assert fields_of(record) == {"source": "raw", "changes": changes, "refused": False}
    assert sorted(found) == sorted([("echo", ["description"]), ("counts", ["new"]), ("a_b", None)] * 2)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TRACED_TOOLS_AUDIT_STORE", str(store))
    shown = printed("show", run_id)
    assert f"raw: {', '.join(changes)}\n" in shown
    assert shown.count("not as pinned") == 3


def test_another_word_for_what_follows_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="on_change must be 'error' or 'warn'"):
        raw_server(pin=tmp_path / "tools.lock", on_change="ignore")


@pytest.mark.parametrize("mode", MODES)
def test_changed_tools_that_are_an_error_end_the_run_and_are_in_the_audit_trail(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, path = tmp_path / "audit.db", pinned(tmp_path / "tools.lock")
    with AuditTrail(store) as trail, raw_server(pin=path) as toolset:
        client = calling(ToolCall("echo"), advisors=[AuditAdvisor(trail)])
        with pytest.raises(McpToolsChanged, match="echo: description") as caught:
            run(mode, client.prompt("?", tools=[toolset]))
        assert trail.flush()
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TRACED_TOOLS_AUDIT_STORE", str(store))
    exported = [json.loads(line) for line in printed("export", "--format", "jsonl").splitlines()]
    (run_id,) = [each["run_id"] for each in exported if each["kind"] == "tools_changed"]
    with read_verified(store) as reader:
        (record,) = reader.run(run_id).tool_changes
        assert reader.run(run_id).calls == ()
    assert fields_of(record) == {"source": "raw", "changes": [*caught.value.changes], "refused": True}
    assert "not as pinned" in printed("show", run_id)
    assert "raw: echo: description, counts: new; the run was refused" in printed("show", run_id)
    (shown,) = json.loads(printed("show", run_id, "--json"))["tool_changes"]
    assert (shown["kind"], shown["refused"]) == ("tools_changed", True)
