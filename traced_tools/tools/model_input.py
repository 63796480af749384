"""What a model is asked by a tool, or to find one, as the observation of its call sees it."""

from __future__ import annotations

from dataclasses import dataclass

from traced_tools.core.messages import Message
from traced_tools.core.options import ChatOptions
from traced_tools.tools.toolset import NO_TOOLS, ToolSet


@dataclass(frozen=True, slots=True)
class ToollessInput:
    """A request outside the iterations of the loop, in which the model is offered no tools."""

    messages: tuple[Message, ...]
    options: ChatOptions
    iteration: int = 0
    tools: ToolSet = NO_TOOLS
