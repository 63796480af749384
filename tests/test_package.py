"""The structure of the package: public names, the direction of imports, and which modules may import or spell what."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, MutableMapping, MutableSequence, MutableSet
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

import traced_tools
from docs.house import ROOMS, contributing, public_names, room_of
from traced_tools import errors
from traced_tools._moved import MOVED
from traced_tools.observe import names

MUTABLE = (MutableMapping, MutableSequence, MutableSet)
ROOT = Path(traced_tools.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
STRANDS = ROOT / "integrations" / "strands.py"
"""A module whose framework is in an environment of its own."""
PUBLIC = public_names()
FORMER = [
    (package, place, name) for package, places in MOVED.items() for place in places for name in places[place].split()
]


@cache
def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def room(module: str) -> int:
    """The place among the rooms of `traced_tools.<module>`."""
    return ROOMS.index(room_of(module))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree_of(path)))


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def running_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes that run, without those under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if is_type_checking(child):
            yield from (below for other in getattr(child, "orelse", []) for below in [other, *running_nodes(other)])
        else:
            yield child
            yield from running_nodes(child)


@cache
def imports_of(path: Path, *, types: bool = False) -> frozenset[str]:
    """The full dotted names of everything that a module imports, anywhere in it; with `types`, for types as well."""
    found: set[str] = set()
    for node in nodes_of(path) if types else running_nodes(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def own_imports(path: Path) -> set[str]:
    """The modules of the package that a module imports, for types as well, without the package's name."""
    found = set()
    for name in imports_of(path, types=True):
        if name.startswith("traced_tools."):
            inside = name.removeprefix("traced_tools.")
            found.add(inside if inside in KNOWN else inside.rpartition(".")[0])
    return found - {"", dotted(path)}


KNOWN = {dotted(path) for path in MODULES}


# What is public.


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_can_be_imported(package: str) -> None:
    module = importlib.import_module(package)
    unresolved = []
    for name in module.__all__:
        try:
            getattr(module, name)
        except (ImportError, AttributeError) as error:
            unresolved.append(f"{name}: {error}")
    assert unresolved == []


@pytest.mark.parametrize("package", PUBLIC)
def test_a_package_offers_exactly_the_names_of_its_stub(package: str) -> None:
    module = importlib.import_module(package)
    assert set(module.__all__) == set(dir(module)) == set(PUBLIC[package])


@pytest.mark.parametrize("package", PUBLIC)
def test_a_stub_lists_names_of_modules_of_the_package_and_nothing_else(package: str) -> None:
    stub = ROOT.joinpath(*package.split(".")[1:], "__init__.pyi")
    names_of_modules = {path.stem for path in stub.parent.glob("*") if path.is_dir() or path.suffix == ".py"}
    assert not names_of_modules & set(PUBLIC[package]), "importing the module would replace the name"
    listed = PUBLIC[package].items()
    lines = [f"from .{module.removeprefix(f'{package}.')} import {name} as {name}" for name, module in listed]
    assert stub.read_text("utf-8").splitlines() == lines


def test_a_name_has_one_place_beside_the_top_level() -> None:
    places = Counter(name for package in PUBLIC.keys() - {"traced_tools"} for name in PUBLIC[package])
    places.update(name for name, value in vars(errors).items() if getattr(value, "__module__", None) == errors.__name__)
    assert [name for name, count in places.items() if count > 1] == []


def test_the_top_level_offers_at_most_sixty_names() -> None:
    assert len(PUBLIC["traced_tools"]) <= 60


@pytest.mark.parametrize("package", PUBLIC)
def test_an_unknown_name_raises_attribute_error(package: str) -> None:
    module = importlib.import_module(package)
    with pytest.raises(AttributeError, match=f"{package} .*invented"):
        module.invented  # noqa: B018


@pytest.mark.parametrize(("package", "place", "name"), FORMER, ids=lambda text: text.removeprefix("traced_tools."))
def test_a_former_place_still_offers_a_name_and_says_where_it_is_now(package: str, place: str, name: str) -> None:
    warning = f"{name} has moved: import it from {place}; the next release removes it from {package}"
    with pytest.warns(DeprecationWarning, match=f"^{re.escape(warning)}$") as warned:
        former = getattr(importlib.import_module(package), name)
    assert warned[0].filename == __file__
    assert former is getattr(importlib.import_module(place), name)
    assert name not in dir(importlib.import_module(package))
    assert place == "traced_tools.errors" or name in PUBLIC[place]


@pytest.mark.parametrize("package", MOVED)
def test_importing_all_names_gives_no_warning(package: str) -> None:
    exec(f"from {package} import *", {})  # warnings are errors


def test_the_package_is_typed() -> None:
    assert (ROOT / "py.typed").is_file()


def test_the_version_is_the_packages() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+(\w|\.)*", traced_tools.__version__)


def test_an_init_lists_names_and_nothing_else() -> None:
    defined = []
    for path in MODULES:  # but for the command line, which is no place to import names from
        if path.name == "__init__.py" and not dotted(path).startswith("cli"):
            definitions = (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)
            defined += [f"{dotted(path)}: {each.name}" for each in tree_of(path).body if isinstance(each, definitions)]
    assert defined == []


# Which way imports point.


def test_each_room_imports_from_rooms_before_it_for_types_as_well() -> None:
    upward = [
        f"{dotted(path)} imports {name}"
        for path in MODULES
        if dotted(path)
        for name in own_imports(path)
        if room(name) > room(dotted(path))
    ]
    assert upward == []


def test_the_picture_of_the_house_is_up_to_date() -> None:
    assert (ROOT.parent / "CONTRIBUTING.md").read_text("utf-8") == contributing(), "run `make reference`"


def test_no_modules_import_each_other_in_a_ring() -> None:
    unordered = TopologicalSorter({dotted(path): own_imports(path) for path in MODULES if dotted(path)})
    try:
        unordered.prepare()
    except CycleError as error:
        pytest.fail(f"these import each other, for types at least: {' -> '.join(error.args[1])}")


def importing(*packages: str, outside: tuple[str, ...] = (), inside: tuple[str, ...] = ()) -> list[str]:
    """Which modules import one of the packages: those outside of some parts, or those inside of some."""
    return [
        f"{dotted(path)} imports {name}"
        for path in MODULES
        if not dotted(path).startswith(outside or "?") and (not inside or dotted(path).split(".")[0] in inside)
        for name in imports_of(path)
        if any(name == each or name.startswith(f"{each}.") for each in packages)
    ]


def test_models_and_tools_never_import_advisors() -> None:
    upper = [f"traced_tools.{each}" for each in ("loop", "advisors", "client", "run_handles")]
    assert importing(*upper, inside=("models", "tools")) == []


def test_only_otel_and_the_fast_path_import_the_sdk() -> None:
    assert importing("opentelemetry.sdk", outside=("otel", "fast_path")) == []


def test_only_otel_imports_exporters_and_prometheus_client() -> None:
    assert importing("opentelemetry.exporter", "prometheus_client", outside=("otel",)) == []


def test_httpx_is_imported_where_http_is_spoken() -> None:
    spoken = ("models.http", "events.exporters.webhook", "cli.dashboards.grafana", "cli.doctor.model_servers")
    assert importing("httpx", "httpx_sse", "aiohttp", outside=spoken) == []


def test_the_sdk_of_mcp_and_its_http_client_are_imported_in_its_room_alone() -> None:
    assert importing("mcp", "mcp_types", "httpx2", outside=("mcp",)) == []


def test_only_the_session_of_the_exporters_imports_what_they_send_with() -> None:
    assert importing("requests", "urllib3", outside=("otel.session",)) == []


def test_the_stages_of_a_run_are_observed_through_observations_alone() -> None:
    sinks = ("scopes", "logger", "typed_events.tool_call")
    stages = ("loop", "advisors", "client", "run_handles", "tools")
    assert importing(*(f"traced_tools.observe.{sink}" for sink in sinks), inside=stages) == []


def test_only_the_module_of_contents_reads_whether_a_tool_may_be_captured() -> None:
    asked = re.compile(r"metadata\.capture\b|getattr\([^()]*metadata, ['\"]capture['\"]")
    asking = [path for path in MODULES if "capture" in path.read_text("utf-8")]  # as unparsing takes its time
    found = [dotted(path) for path in asking if asked.search(ast.unparse(tree_of(path)))]
    setting = "tools.callback"  # which makes a tool of a marked function
    assert [each for each in found if each != setting] == ["observe.content"]


def test_advisors_tools_and_the_client_import_neither_asyncio_nor_threading() -> None:
    forbidden = ("asyncio", "threading", "concurrent", "multiprocessing", "anyio", "trio")
    assert importing(*forbidden, inside=("loop", "advisors", "tools", "client", "run_handles")) == []


def test_only_configure_sets_the_global_providers() -> None:
    setters = ("set_tracer_provider", "set_meter_provider", "set_logger_provider")
    called = [
        f"{dotted(path)} calls {ast.unparse(node.func)}"
        for path in MODULES
        if dotted(path) != "otel.configure"
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(setters)
    ]
    assert called == []


# Who spells names.


def docstrings(path: Path) -> set[int]:
    """The ids of the constants that are docstrings, of attributes too."""
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found.add(id(node.value))
    return found


def test_no_module_but_the_table_spells_a_telemetry_name() -> None:
    table = {*names.ATTRIBUTES, *names.METRICS, *(span.name for span in names.SPANS if "{" in span.name)}
    shape = re.compile(r"(gen_ai|traced_tools)\.[a-z0-9_]+(\.[a-z0-9_]+)+")
    modules = {f"traced_tools.{dotted(each)}" for each in MODULES}
    spelled = []
    for path in MODULES:
        if dotted(path).startswith("observe.names"):
            continue
        documented = docstrings(path)
        for node in nodes_of(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
                text = node.value
                if text in table or (shape.match(text) and text not in modules):
                    spelled.append(f"{dotted(path)}, line {node.lineno}: {text[:60]}")
    assert spelled == []


# What an import costs.

HEAVY = (
    *("opentelemetry.sdk", "opentelemetry.exporter", "grpc", "httpx", "prometheus_client"),
    *("genai_prices", "griffe", "httpx2", "jsonschema", "mcp", "mcp_types", "PIL", "requests", "rich", "typer"),
    *("cryptography", "numpy", "psycopg", "redis", "rfc8785", "sqlalchemy", "tantivy", "urllib3", "yaml"),
)


@pytest.mark.parametrize(
    "code",
    [
        "import traced_tools",
        "import traced_tools.models, traced_tools.testing",
        "from traced_tools import ChatClient, tool; from traced_tools.testing import ScriptedChatModel",
        "from traced_tools.memory import InMemoryChatMemoryRepository, MessageEntry",
        "from traced_tools.search import RegexToolIndex; RegexToolIndex()",
        "import traced_tools.mcp",
        "from traced_tools import ObserverAdvisor; from traced_tools.events import JsonLinesExporter",
    ],
)
def test_importing_stays_light(code: str) -> None:
    loaded = "import sys; print('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{code}; {loaded}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found = {name for name in done.stdout.split() if any(name == each or name.startswith(f"{each}.") for each in HEAVY)}
    assert found == set()


def test_importing_the_client_builds_no_types_that_few_runs_need() -> None:
    code = "from traced_tools import ChatClient, tool; import sys; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    own = [name for name in done.stdout.split() if name.split(".")[0] == "traced_tools"]
    rare = ("advisors.structured_output", "loop.state", "models.refusals", "observe.typed_events.types")
    assert {f"traced_tools.{name}" for name in rare}.isdisjoint(own)
    assert len(own) <= 155  # each takes a quarter of a millisecond and more


def test_importing_the_package_alone_imports_none_of_its_modules_but_that_of_moved_names() -> None:
    code = "import traced_tools, sys; print('\\n'.join(m for m in sys.modules if m.startswith('traced_tools.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["traced_tools._moved"]


def _functions_of(owner: Any) -> Iterator[Any]:
    yield from (each for each in vars(owner).values() if inspect.isfunction(each))


def _shared_defaults(module: Any) -> Iterator[str]:
    """Yield each default of `module` that all callers or all instances would share and can change."""
    owned = [each for each in vars(module).values() if getattr(each, "__module__", None) == module.__name__]
    classes = [each for each in owned if inspect.isclass(each)]
    for function in (each for owner in (module, *classes) for each in _functions_of(owner)):
        if function.__module__ == module.__name__ and not function.__name__.startswith("_forget"):
            for parameter in inspect.signature(function).parameters.values():
                if isinstance(parameter.default, MUTABLE):
                    yield f"{function.__qualname__}({parameter.name}=)"
    for each in classes:
        fields = dataclasses.fields(each) if dataclasses.is_dataclass(each) else ()
        makers = {field.name: field.default_factory for field in fields}
        makers |= {name: field.default_factory for name, field in getattr(each, "model_fields", {}).items()}
        for name, make in makers.items():
            if make not in (None, dataclasses.MISSING) and isinstance(make(), MUTABLE) and make() is make():
                yield f"{each.__qualname__}.{name}"
        for name in vars(each).get("__annotations__", ()):
            if name != "model_config" and isinstance(vars(each).get(name), MUTABLE):
                yield f"{each.__qualname__}.{name}"


def test_no_default_is_shared_and_can_be_changed() -> None:
    paths = [path for path in MODULES if path != STRANDS]
    modules = [importlib.import_module(f"traced_tools.{dotted(path)}".rstrip(".")) for path in paths]
    assert [f"{module.__name__}: {each}" for module in modules for each in _shared_defaults(module)] == []


def test_one_module_registers_what_happens_at_forks() -> None:
    callers = [dotted(path) for path in MODULES if "register_at_fork(" in path.read_text("utf-8")]
    assert callers == ["core.fork"]
