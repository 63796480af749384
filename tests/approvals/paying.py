"""A process of an agent whose calls wait for approval, in a conversation that other processes continue.

    python -m tests.approvals.paying URL KEEPER TRAIL STEP

`pause` prints the state of a run that waits. `resume` reads a state and resumes it; its tool prints `paying` and waits
for a line. `say` says something else, and prints the results of calls that the model reads.
"""

from __future__ import annotations

import sys

from tests.memory.conversations import INSIDE, assert_well_formed
from traced_tools import Approve, AuditAdvisor, AuditTrail, ChatClient, MemoryAdvisor, ToolCall, ToolMessage, tool
from traced_tools.approvals import PendingStore
from traced_tools.memory import MessageWindowChatMemory, SqlChatMemoryRepository
from traced_tools.testing import ScriptedChatModel


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    print("paying", flush=True)
    sys.stdin.readline()
    return f"paid {amount}"


def main() -> None:
    url, keeper, trail_path, step = sys.argv[1:]
    memory = MessageWindowChatMemory(SqlChatMemoryRepository(url))
    model = ScriptedChatModel([[ToolCall("pay", {"amount": 5}, id="p")] if step == "pause" else "fine"])
    with AuditTrail(trail_path) as trail:
        client = ChatClient(
            model,
            tools=[pay],
            advisors=[MemoryAdvisor(memory, order=INSIDE), AuditAdvisor(trail)],
            pending_store=PendingStore(url) if keeper == "store" else None,
        )
        if step == "pause":
            print(client.prompt("pay", conversation_id="c").call().state, flush=True)
        elif step == "resume":
            client.resume(sys.stdin.readline(), {"p": Approve(by="ana")}).call()
        else:
            client.prompt("and?", conversation_id="c").call()
            assert_well_formed(model.requests[0].messages)
            for message in model.requests[0].messages:
                for part in message.results if isinstance(message, ToolMessage) else ():
                    print(part.content, flush=True)


if __name__ == "__main__":
    main()
