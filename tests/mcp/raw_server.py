"""An MCP server that is written by hand, over stdio, and misbehaves on command.

It speaks the older era, or with `modern` the newer one. Its tools are `echo` and those that do what their names say.
Further arguments:

- `dies`: it ends at once; `dies_of_probe`: it ends when it is asked what it speaks;
- `silent`: it never answers; `ignores_probe`: it does not answer when it is first asked what it speaks;
- `pages`: it lists each of its tools on a page of its own; `endless`: after each page there is another one;
- `chats`: it prints lines beside its messages;
- `restless`: it describes `echo` anew and has another tool in each list, and reports a change with each answer;
- `names=a,b;c`: its tools are `a` and `b` when it first lists them, and `c` from then on; it reports a change with each
  answer;
- `twice`: it lists a tool again, with another description;
- `many`: it has 10,000 tools; `none`: it has none;
- `bare`: its results have no `resultType`; `picky`: it refuses the first revision that it is asked for;
- `wants_folders`: it asks for folders before it lists its tools, and describes `echo` with the answer;
- `marked`: it has tools with marks for headers, all but one of them invalid.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

NAMES = (
    *("echo", "garbage", "wrong_result", "wrong_structure", "huge_number", "a.b", "a_b", "bad schema"),
    *("die_once", "die_once_idempotent", "process_id"),
    *("endless_line", "no_utf8", "floods", "answers_others", "asks"),
    *("request", "nothing", "list_of_numbers", "odd_progress", "other_type", "prints", "begets"),
)
COUNTS: dict[str, int] = {}
MODERN = "modern" in sys.argv
LISTS = [text for arg in sys.argv if arg.startswith("names=") for text in arg.removeprefix("names=").split(";")]
MARKS: dict[str, Any] = {"valid": "Text", "empty": "", "spaced": "a b", "no text": 1}


def tool(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}
    found: dict[str, Any] = {"name": name, "description": f"Does {name}.", "inputSchema": schema}
    if name == "wrong_structure":
        found["outputSchema"] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    if name == "bad schema":
        schema["properties"]["text"] = {"type": "no such type"}
    if name == "die_once_idempotent":
        found["annotations"] = {"idempotentHint": True}
    return found


def result(name: str, params: dict[str, Any]) -> Any:
    text = params.get("arguments", {}).get("text", "")
    match name:
        case "wrong_result":
            return {"content": f"no list: {text}"}
        case "wrong_structure":
            return {"content": [], "structuredContent": {"n": text}}
        case "huge_number":
            return {"content": [], "structuredContent": {"n": 2**70}}
        case "die_once" | "die_once_idempotent":
            if not os.path.exists(text):
                Path(text).touch()
                os._exit(9)
        case "process_id":
            return {"content": [{"type": "text", "text": str(os.getpid())}]}
        case "endless_line":
            while True:
                sys.stdout.write("x" * 65536)
        case "no_utf8":
            sys.stdout.buffer.write(b'{"jsonrpc": "2.0", "method": "\xff"}\n\xfe\n')
        case "floods":
            for number in range(1000):
                send({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": number}})
        case "odd_progress":
            token = params["_meta"]["progressToken"]
            for progress in ("1", None, True, float("nan"), 1, 10**400):
                send(
                    {
                        "jsonrpc": "2.0",
                        "method": "notifications/progress",
                        "params": {"progressToken": token, "progress": progress},
                    }
                )
        case "answers_others":
            for other in (None, 10**30, "x", -1, [], {}):
                send({"jsonrpc": "2.0", "id": other, "result": {"content": []}})
                send({"jsonrpc": "2.0", "id": other, "error": {"code": 1, "message": text}})
        case "asks":
            send({"jsonrpc": "2.0", "id": "s1", "method": "elicitation/create", "params": {"message": text}})
            return {"content": [{"type": "text", "text": sys.stdin.readline()}]}
        case "request":
            return {"content": [{"type": "text", "text": json.dumps(params)}]}
        case "prints":  # instead of an answer; the text has one character for each byte
            sys.stdout.buffer.write(text.encode("latin-1") + b"\n")
            sys.stdout.flush()
            return None
        case "begets":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.DEVNULL)
            return {"content": [{"type": "text", "text": str(child.pid)}]}
        case "nothing":
            return {"content": []}
        case "list_of_numbers":
            return {"content": [], "structuredContent": [1, 2]}
        case "other_type":
            return {"resultType": "task", "content": [{"type": "text", "text": text}]}
        case "counts":
            return {"content": [{"type": "text", "text": json.dumps(COUNTS)}]}
    return {"content": [{"type": "text", "text": f"{name}: {text}"}]}


def send(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def listed() -> list[dict[str, Any]]:
    if "none" in sys.argv:
        return []
    if "many" in sys.argv:
        return [tool(f"tool_{number}") for number in range(10_000)]
    if LISTS:
        return [tool(name) for name in LISTS[min(COUNTS["tools/list"], len(LISTS)) - 1].split(",")]
    found = [tool(name) for name in (*NAMES, "counts")]
    if "restless" in sys.argv:
        found.append(tool(f"tool_{COUNTS['tools/list']}"))
        found[0]["description"] = f"Does echo, {COUNTS['tools/list']}."
    if "twice" in sys.argv:
        found.append({**tool("echo"), "description": "Another one."})
    if "marked" in sys.argv:
        for name, mark in MARKS.items():
            found.append(tool(name))
            found[-1]["inputSchema"]["properties"]["text"]["x-mcp-header"] = mark
    return found


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    COUNTS[method] = COUNTS.get(method, 0) + 1
    capabilities = {"tools": {"listChanged": True}}
    match method:
        case "server/discover" if "dies_of_probe" in sys.argv:
            os._exit(4)
        case "server/discover" if "picky" in sys.argv and COUNTS[method] == 1:
            raise LookupError(method)
        case "server/discover" if MODERN:
            return {"supportedVersions": ["2026-07-28"], "capabilities": capabilities}
        case "initialize" if not MODERN:
            information = {"name": "raw", "version": "1"}
            return {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": information}
        case "tools/list":
            tools = listed()
            if "wants_folders" in sys.argv:
                send({"jsonrpc": "2.0", "id": "folders", "method": "roots/list"})
                tools[0]["description"] = sys.stdin.readline()
            if "pages" not in sys.argv and "endless" not in sys.argv:
                return {"tools": tools}
            place = int(params.get("cursor", "0"))
            page: dict[str, Any] = {"tools": tools[place : place + 1]}
            more = place + 1 < len(tools) or "endless" in sys.argv
            return {**page, "nextCursor": str(place + 1)} if more else page
        case "tools/call":
            if params["name"] == "garbage":
                print(f"this is no JSON: {params['arguments']}", '{"jsonrpc": "2.0", "id": []}', sep="\n", flush=True)
            found: dict[str, Any] = result(params["name"], params)
            return found
    raise LookupError(method)


def main() -> None:
    if "dies" in sys.argv:
        os._exit(3)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "silent" in sys.argv:
            continue
        if "ignores_probe" in sys.argv and message["method"] == "server/discover" and not COUNTS:
            continue
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            if message["method"] == "tools/call" and message["params"]["name"] == "prints":
                arguments = message["params"]["arguments"]
                arguments["text"] = arguments["text"].replace("<id>", str(message["id"]))
            reply["result"] = answer(message["method"], message.get("params", {}))
            if reply["result"] is None:
                continue
            if MODERN:
                kind = {} if "bare" in sys.argv else {"resultType": "complete"}
                reply["result"] = {**kind, "ttlMs": 0, "cacheScope": "private", **reply["result"]}
        except LookupError:
            reply["error"] = {"code": -32601, "message": f"no method {message['method']}"}
            if "picky" in sys.argv:
                reply["error"] = {
                    "code": -32022,
                    "message": "no",
                    "data": {"supported": ["2026-07-28"], "requested": "?"},
                }
        if "restless" in sys.argv or LISTS:
            send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        if "chats" in sys.argv:
            sys.stdout.buffer.write(b"INFO: done \xff\n\n{}\n[1, 2]\nnull\n")
        send(reply)


main()
