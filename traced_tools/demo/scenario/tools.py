"""The tools of the scenario. How long a tool takes is one of its arguments, so that the script decides it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

from traced_tools.core.messages import ImagePart
from traced_tools.core.tool_definition import ToolMetadata
from traced_tools.core.tool_input import InputRequest, PendingInput
from traced_tools.demo.scenario.models import ScenarioEmbedder
from traced_tools.errors import InputRequired
from traced_tools.mcp.scopes import McpEndpoint, McpRequestScope
from traced_tools.observe import names
from traced_tools.observe.run_telemetry import current_telemetry
from traced_tools.tools.callback import FunctionToolCallback
from traced_tools.tools.decorator import tool

TIMEOUT = 0.03
"""The time-out in seconds of the tools that exceed it."""
FILES = "files"
"""The name of the MCP server."""
_PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360000000000500010d0a2db40000000049454e44ae426082"
)


@tool
async def get_weather(city: str, seconds: float) -> str:
    """Get the weather in a city."""
    await asyncio.sleep(seconds)
    return f"sunny in {city}"


@tool
def search_flights(city: str, seconds: float) -> str:
    """Search flights to a city."""
    time.sleep(seconds)
    return f"3 flights to {city}"


@tool
def find_hotels(city: str, seconds: float) -> str:
    """Find hotels in a city."""
    time.sleep(seconds)
    return f"2 hotels in {city}"


@tool
def check_stock(seconds: float) -> str:
    """Check the stock; the warehouse is down."""
    time.sleep(seconds)
    raise ConnectionError("the warehouse refused the connection")


@tool
def charge_card(seconds: float) -> str:
    """Charge a card; the payment service rejects it."""
    time.sleep(seconds)
    raise PermissionError("the payment service rejected the card")


@tool(timeout=TIMEOUT)
async def ask_supplier(seconds: float) -> str:
    """Ask a supplier, who answers after the time-out."""
    await asyncio.sleep(TIMEOUT + 10 + seconds)
    return "too late"


@tool
def book_hotel(seconds: float) -> str:
    """Book a hotel, which the spending policy refuses."""
    return "booked"


@tool
def book_train(seconds: float) -> str:
    """Book a train, which the policy of a new version refuses."""
    return "booked"


@tool
def read_customer(seconds: float) -> str:
    """Read the data of a customer, which the privacy policy refuses."""
    return "a customer"


@tool(requires_approval=True)
def refund(seconds: float) -> str:
    """Refund a payment, which a person approves or refuses."""
    time.sleep(seconds)
    return "refunded"


@tool
def send_parcel(seconds: float) -> str:
    """Send a parcel, whose size only the user knows."""
    time.sleep(seconds)
    schema = {"type": "object", "properties": {"centimetres": {"type": "integer"}}}
    params = {"message": "How large is the parcel?", "requestedSchema": schema}
    raise InputRequired(PendingInput(requests=(InputRequest(key="size", method="elicitation/create", params=params),)))


@tool(return_direct=True)
def print_itinerary(seconds: float) -> str:
    """Print the itinerary, which is the answer."""
    time.sleep(seconds)
    return "Oslo to Lisbon"


@tool
def print_note(seconds: float) -> str:
    """Print a note, after which an advisor ends the run."""
    time.sleep(seconds)
    return "printed"


@tool
def poll_status(seconds: float) -> str:
    """Return the status of an order, which never changes."""
    time.sleep(seconds)
    return "pending"


@tool
def convert_units(amount: float) -> str:
    """Convert an amount."""
    return f"{amount * 2.54}"


@tool
def search_documents(seconds: float) -> str:
    """Search documents by their embeddings."""
    time.sleep(seconds)
    return f"{len(ScenarioEmbedder().embed(['question', 'document']).embeddings)} documents"


@tool
def draw_map(seconds: float) -> ImagePart:
    """Draw a map."""
    time.sleep(seconds)
    return ImagePart(data=_PIXEL)


@tool
def read_log(seconds: float) -> Iterator[str]:
    """Read a log, which is longer than a result may be."""
    time.sleep(seconds)
    return (f"line {number}" for number in range(10_000))


@tool
def write_note(seconds: float) -> str:
    """Write a note, which the audit trail records."""
    time.sleep(seconds)
    return "written"


@tool
def delete_note(seconds: float) -> str:
    """Delete a note while the audit trail cannot be written."""
    time.sleep(seconds)
    return "deleted"


def files_of_a_server() -> list[FunctionToolCallback]:
    """Return tools that stand for those of an MCP server: their calls have the spans and metrics of its requests."""

    def read_file(seconds: float) -> str:
        """Read a file."""
        with _request_to_server("read_file"):
            time.sleep(seconds)
        return "a text"

    def write_file(seconds: float) -> str:
        """Write a file, on a disk that is full."""
        with _request_to_server("write_file") as request:
            time.sleep(seconds)
            request.tool_failed()
        raise OSError("the disk is full")

    metadata = ToolMetadata(source=FILES)
    return [FunctionToolCallback(function, metadata=metadata) for function in (read_file, write_file)]


def _request_to_server(tool: str) -> McpRequestScope:
    return McpRequestScope(current_telemetry(None), McpEndpoint(FILES, "pipe"), names.TOOLS_CALL, tool, 1, "2025-11-25")


class Reports:
    """Reports that exceed their time-out and end after their run, however busy the machine is.

    Attributes:
        run_ended: set it when the run has ended.
    """

    def __init__(self) -> None:
        self.run_ended = threading.Event()

    @tool(timeout=TIMEOUT)
    def run_report(self, seconds: float) -> str:
        """Run a report, which ends after the time-out and cannot be stopped."""
        self.run_ended.wait()
        time.sleep(seconds)
        return "too late"


class ExchangeRates:
    """Exchange rates whose first request fails."""

    def __init__(self) -> None:
        self._has_asked = False

    @tool(retries=1)
    def get_exchange_rate(self, seconds: float) -> str:
        """Get an exchange rate."""
        time.sleep(seconds)
        if not self._has_asked:
            self._has_asked = True
            raise ConnectionError("the exchange is busy")
        return "1.09"
