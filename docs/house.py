"""The rooms of the package in order: `make reference` writes the picture of the house in CONTRIBUTING.md from here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
PACKAGE: Final = ROOT / "traced_tools"
BEGIN: Final = "<!-- the house: written by `make reference` from docs/house.py -->\n"
END: Final = "<!-- the end of the house -->\n"


@dataclass(frozen=True)
class Room:
    """A part of the package. It imports from itself and from rooms before it, for types as well.

    Attributes:
        name: its folder, or the module that stands alone, in dots.
        holds: what is in it.
        never: what it may never know.
        modules: the modules that belong to it and stand outside its folder.
    """

    name: str
    holds: str
    never: str
    modules: tuple[str, ...] = ()


SPINE: Final = (
    Room(
        "core",
        "messages, options, limits, totals, prices; the nouns of tools and approvals",
        "that there are runs, or who reads them",
        ("errors", "_moved", "_version"),
    ),
    Room("flow", "flows, steps, their four drivers, threads", "what a flow is about"),
    Room("observe.names", "the name and meaning of every span, metric, event and attribute", "when one is recorded"),
    Room(
        "observe",
        "the stages of a run, and what spans, metrics, events and typed events record of each",
        "an SDK, an exporter, or a memory, index or server",
    ),
    Room("run", "the context of one run", "which advisors, models and tools there are"),
    Room("tools.schema", "from a function to a JSON schema, and from JSON to arguments", "that a model wrote the JSON"),
    Room(
        "models",
        "providers, each a pure codec; the HTTP transport; routes, fallbacks",
        "tools that run, and advisors",
    ),
    Room("tools", "callbacks, selections, and the execution of the calls of an answer", "the loop, and advisors"),
    Room("loop", "the chain of advisors, the exchange, the tool loop, the state of a paused run", "any one advisor"),
    Room("advisors", "advisors that need nothing but the loop", "another advisor, and any annex"),
    Room(
        "client",
        "`ChatClient`, its requests, streams and runs",
        "any annex",
        ("client_settings", "durable_run", "request_spec", "run_handles"),
    ),
)
ANNEXES: Final = (
    Room("stores", "what stores share: databases, versions of tables, errors without contents", "what is stored"),
    Room("fast_path", "spans, values and log records of known SDKs, at a fraction of their cost", "who records"),
    Room("otel", "setup of the OpenTelemetry SDK, exporters, Prometheus", "what a span is about"),
    Room("policy", "rules about calls, the files that hold them, and their advisor", "who approves, and where"),
    Room("events", "exporters of typed events, and the advisor that feeds them", "what else listens"),
    Room(
        "memory",
        "logs of conversations, their repositories, what a model is sent; the advisor",
        "what tools do",
    ),
    Room("search", "indexes of tools, and the tool loop that searches them", "where a tool comes from"),
    Room("mcp", "tools of MCP servers, and tools served to MCP clients", "which model calls"),
    Room("audit", "what the rooms of the trail share: records, keys, the store", "that there are runs and advisors"),
    Room("audit.reading", "calls and runs from a store", "how records are made"),
    Room("audit.verifying", "proofs that a store was not changed", "what an application believes of it"),
    Room("audit.writing", "the one place where records wait for the store", "what a call is"),
    Room("audit.trail", "`AuditTrail`, which joins the three", "advisors", ("audit.erasing",)),
    Room("audit.advisor", "the advisor that makes records of a run", "how they are stored"),
    Room("observe.manual", "runs of loops that are not this package's", "which framework drives them"),
    Room("integrations", "frameworks and SDKs, each by its own hooks", "one another"),
    Room("durable", "the log of a run that outlives its process, and where the next process goes on", "a database"),
    Room("approvals", "the store in which runs wait for a person or a process", "who decides"),
    Room(
        "durable.workers",
        "processes that drive the runs of a store, and the queues between them",
        "what a run does",
        ("durable.deliveries", "durable.lookout", "durable.presence"),
    ),
    Room("testing", "scripted models, captured telemetry, a replaying server", "pytest"),
    Room("demo", "`traced-tools demo`, and the scenario that plays every telemetry", "the boards that show it"),
    Room("cli", "the command line", "what a program calls", ("__main__",)),
)
ROOMS: Final = (*SPINE, *ANNEXES)


def room_of(module: str) -> Room:
    """Return the room of `traced_tools.<module>`: the one with the longest name that the module's name begins with."""
    for room in ROOMS:
        if module in room.modules:
            return room
    fitting = [room for room in ROOMS if f"{module}.".startswith(f"{room.name}.")]
    if not fitting:
        raise LookupError(f"traced_tools.{module} is in no room: add it to docs/house.py")
    return max(fitting, key=lambda room: len(room.name))


def modules() -> dict[str, Path]:
    """Return the modules of the package by their dotted names, without the package's own."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    del found[""]
    return found


def public_names() -> dict[str, dict[str, str]]:
    """Return the packages that offer names, each with the module that defines each of its names."""
    packages = {}
    for stub in sorted(PACKAGE.rglob("__init__.pyi")):
        package = ".".join((PACKAGE.name, *stub.parent.relative_to(PACKAGE).parts))
        imports = [node for node in ast.parse(stub.read_text("utf-8")).body if isinstance(node, ast.ImportFrom)]
        packages[package] = {alias.name: f"{package}.{node.module}" for node in imports for alias in node.names}
    return packages


def documented_names() -> dict[str, dict[str, str]]:
    """Return the public names as `public_names` does, and the classes of `traced_tools.errors`, which is a module."""
    body = ast.parse((PACKAGE / "errors.py").read_text("utf-8")).body
    classes = [node.name for node in body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    return {**public_names(), "traced_tools.errors": dict.fromkeys(classes, "traced_tools.errors")}


def imports_of(path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules of the package that a module imports, for types as well."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("traced_tools."):
            module = node.module.removeprefix("traced_tools.")
            inside = {f"{module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else module for name in inside}
    return found


def arrows() -> dict[str, list[str]]:
    """Return the rooms that each room imports from, in order."""
    known = modules()
    pointing: dict[str, set[str]] = {room.name: set() for room in ROOMS}
    for module, path in known.items():
        pointing[room_of(module).name] |= {room_of(name).name for name in imports_of(path, known)}
    places = {room.name: place for place, room in enumerate(ROOMS)}
    return {name: sorted(rooms - {name}, key=places.__getitem__) for name, rooms in pointing.items()}


def picture() -> str:
    """Return the picture of the house as Markdown."""
    return "".join(f"{line}\n" for line in _lines())


def _lines() -> Iterator[str]:
    imported = arrows()
    yield "The **spine** is what every agent uses. It works without the annexes: `tests/test_spine.py` deletes them."
    yield ""
    yield from _table(SPINE, imported)
    yield ""
    yield "The **annexes** are what some agents use. Each has its advisor and what it observes. The names and the"
    yield "metrics of all telemetry are in `observe`, so that one place declares them."
    yield ""
    yield from _table(ANNEXES, imported)


def _table(rooms: tuple[Room, ...], imported: dict[str, list[str]]) -> Iterator[str]:
    yield "| room | holds | may never know | imports from |"
    yield "| --- | --- | --- | --- |"
    for room in rooms:
        names = ", ".join(f"`{name}`" for name in _shortened(imported[room.name])) or "nothing"
        yield f"| `{room.name}` | {room.holds} | {room.never} | {names} |"


def _shortened(names: list[str]) -> list[str]:
    """Return the names of rooms, with `the spine` in place of more than five rooms of it."""
    spine = [name for name in names if name in {room.name for room in SPINE}]
    return names if len(spine) < 6 else ["the spine", *names[len(spine) :]]


def contributing() -> str:
    """Return CONTRIBUTING.md with the present picture."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{picture()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    (ROOT / "CONTRIBUTING.md").write_text(contributing(), "utf-8")
