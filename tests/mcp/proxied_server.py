"""An MCP server of the older era that is written by hand, for the gateway: it writes down each line that it gets.

    proxied_server.py LEDGER [NAME=DESCRIPTION]

The second argument describes a tool that the server has beside its own: `echo`, `fail`, `refuse`, `ask`, `work`, `exit`
and `environment`. A line that it does not know is printed as it is, if it is a notification `print`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

NAMES = ["echo", "fail", "refuse", "ask", "work", "wait", "exit", "environment"]


def send(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def tools() -> list[dict[str, Any]]:
    described = {name: f"Does {name}." for name in NAMES}
    described |= dict(argument.split("=", 1) for argument in sys.argv[2:])
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    hints = {"readOnlyHint": True}
    return [
        {"name": name, "description": text, "inputSchema": schema, **({"annotations": hints} if name == "echo" else {})}
        for name, text in described.items()
    ]


def call(params: dict[str, Any]) -> dict[str, Any] | None:
    text = (params.get("arguments") or {}).get("text", "")
    match params["name"]:
        case "fail":
            return {"content": [{"type": "text", "text": f"failed: {text}"}], "isError": True}
        case "refuse":
            raise LookupError(f"refused: {text}")
        case "ask":
            send({"jsonrpc": "2.0", "id": 7, "method": "sampling/createMessage", "params": {"messages": []}})
            text = receive()
        case "work":
            token = params["_meta"]["progressToken"]
            for number in range(3):
                progress = {"progressToken": token, "progress": number}
                send({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})
        case "wait":
            return None
        case "exit":
            os._exit(int(text))
        case "environment":
            text = json.dumps(dict(os.environ))
    return {"content": [{"type": "text", "text": text}], "isError": False}


def receive() -> str:
    line = sys.stdin.buffer.readline()
    if not line:
        sys.exit(0)
    with open(sys.argv[1], "ab") as ledger:
        ledger.write(line)
    return line.decode()


def result(method: str, params: dict[str, Any]) -> Any:
    match method:
        case "initialize":
            capabilities = {"tools": {"listChanged": True}}
            information = {"name": "proxied", "version": "1"}
            return {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": information}
        case "tools/list":
            return {"tools": tools()}
        case "tools/call":
            return call(params)
        case "ping":
            return {}
    raise LookupError(f"no method {method}")


def main() -> None:
    print("the server begins", file=sys.stderr, flush=True)
    while True:
        message = json.loads(receive())
        if message.get("method") == "print":
            print(message["params"]["line"], flush=True)
        if "id" not in message or "method" not in message:
            continue
        answer = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            answer["result"] = result(message["method"], message.get("params", {}))
        except LookupError as error:
            answer["error"] = {"code": -32601, "message": str(error)}
        if answer.get("result", answer) is not None:
            send(answer)


if __name__ == "__main__":
    main()
