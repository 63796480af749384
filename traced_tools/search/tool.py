"""The tool by which a model searches its tools."""

# no postponed annotations: those of the tool's function name a local variable
from typing import Annotated, Final

from pydantic import Field

from traced_tools.core.tool_context import ToolContext
from traced_tools.core.tool_definition import ToolAnnotations, ToolMetadata
from traced_tools.search.session import current_search
from traced_tools.tools.flow_tool import FlowToolCallback

MOST_RESULTS: Final = 10
_DESCRIPTION: Final = (
    "Find tools for a task. Most of your tools are not shown: search for a tool before you decide that you have none. "
    "The result has the names of the tools that fit best, and you can call these tools from then on."
)
_NOTHING: Final = "No tool fits. Search again with other words, or answer without a tool."


def search_tool(name: str, max_results: int, query_hint: str) -> FlowToolCallback:
    """Return the search tool.

    Args:
        name: its name.
        max_results: how many tools a search finds at most, unless the model asks for another number.
        query_hint: what a query is.
    """
    most = max(MOST_RESULTS, max_results)

    async def search(
        context: ToolContext,
        query: Annotated[str, Field(description=query_hint)],
        max_results: Annotated[
            int,
            # bounds for the model only: a number beyond them is clamped, because an error would cost another request
            Field(description="How many tools to find.", json_schema_extra={"minimum": 1, "maximum": most}),
        ] = max_results,
    ) -> list[str] | str:
        names = await current_search().search(query, min(max(max_results, 1), most), context)
        return names or _NOTHING

    harmless = ToolAnnotations(read_only=True, destructive=False, idempotent=True, open_world=False)
    metadata = ToolMetadata(annotations=harmless, repeatable=True)  # a model may have lost what it found
    return FlowToolCallback(search, name=name, description=_DESCRIPTION, metadata=metadata)
