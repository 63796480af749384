"""An MCP server of the older era that is written by hand, over stdio, and misbehaves on command.

Its tools are `echo` and those that do what their names say. With `dies` as its argument it ends at once, with `silent`
it never answers, and with `pages` it lists each of its tools on a page of its own.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

NAMES = (
    *("echo", "garbage", "wrong_result", "wrong_structure", "huge_number", "a.b", "a_b", "bad schema"),
    *("die_once", "die_once_idempotent", "process_id"),
)
COUNTS: dict[str, int] = {}


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


def result(name: str, arguments: dict[str, Any]) -> Any:
    text = arguments.get("text", "")
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
        case "counts":
            return {"content": [{"type": "text", "text": json.dumps(COUNTS)}]}
    return {"content": [{"type": "text", "text": f"{name}: {text}"}]}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    COUNTS[method] = COUNTS.get(method, 0) + 1
    match method:
        case "initialize":
            capabilities = {"tools": {"listChanged": True}}
            information = {"name": "raw", "version": "1"}
            return {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": information}
        case "tools/list":
            names = [*NAMES, "counts"]
            if "pages" not in sys.argv:
                return {"tools": [tool(name) for name in names]}
            place = int(params.get("cursor", "0"))
            page: dict[str, Any] = {"tools": [tool(names[place])]}
            return {**page, "nextCursor": str(place + 1)} if place + 1 < len(names) else page
        case "tools/call":
            if params["name"] == "garbage":
                print(f"this is no JSON: {params['arguments']}", '{"jsonrpc": "2.0", "id": []}', sep="\n", flush=True)
            found: dict[str, Any] = result(params["name"], params.get("arguments", {}))
            return found
    raise LookupError(method)


def main() -> None:
    if "dies" in sys.argv:
        os._exit(3)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "silent" in sys.argv:
            continue
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            reply["result"] = answer(message["method"], message.get("params", {}))
        except LookupError:
            reply["error"] = {"code": -32601, "message": f"no method {message['method']}"}
        print(json.dumps(reply), flush=True)


main()
