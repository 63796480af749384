"""Every block of Python in the README and in the docs runs unchanged, the blocks of a page in order.

The blocks of a page are one program, except for docs/getting-started.md, where each is a program.

So does each line of the shell blocks headed `sh run`; a line that must fail has the comment `# exits with 1`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.house import documented_names
from docs.site import SOURCES, reference_names
from traced_tools.testing import Received, ReplayServer, Reply

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
GETTING_STARTED = ROOT / "docs" / "getting-started.md"
BLOCK = re.compile(r"^```(python|sh run)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FENCE = re.compile(r"^(`{3,}).*?^\1$", re.DOTALL | re.MULTILINE)
LONG_PAGES = ("docs/dashboards-matrix.md", "docs/runbooks.md")
"""Pages beside the guides that are read in parts: one is generated, the other has a section for each alert."""
EXIT_STATUS = re.compile(r"# exits with (\d)$")
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
"""Where the commands of the pages are found: those of this environment first."""
SHELL = """
import subprocess


def run(line, status):
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=300)
    print(f"$ {line}", done.stdout, sep="\\n", flush=True)
    assert done.returncode == status, f"{line} ended with {done.returncode}: {done.stdout} {done.stderr}"
"""


def script(page: Path) -> str:
    """Return the blocks of a page as one script with the line numbers of the page."""
    text = page.read_text()
    lines = [""] * (text.count("\n") + 1)
    for block in BLOCK.finditer(text):
        start = text.count("\n", 0, block.start(2))
        code = block.group(2).splitlines()
        lines[start : start + len(code)] = code if block.group(1) == "python" else map(shell_line, code)
    return "\n".join(lines)


def shell_line(line: str) -> str:
    """Return Python code that runs a shell line and checks its exit status: that of its comment, else 0."""
    status = EXIT_STATUS.search(line)
    return f"__import__('shell').run({line!r}, {0 if status is None else int(status.group(1))})"


def weather_service(request: Received) -> Reply:
    """Answer like a model that first looks up the weather, on a server that also lists its models."""
    if request.method == "GET":
        return Reply.json({"object": "list", "data": []})
    body = request.json()
    if any(message["role"] == "tool" for message in body["messages"]):
        said, reason = {"role": "assistant", "content": "It is sunny."}, "stop"
    else:
        function = {"name": "get_weather", "arguments": '{"city": "Lisbon"}'}
        calls = [{"index": 0, "id": "c1", "type": "function", "function": function}]
        said, reason = {"role": "assistant", "content": None, "tool_calls": calls}, "tool_calls"
    usage = {"prompt_tokens": 61, "completion_tokens": 17, "total_tokens": 78}
    answer = {"id": "r1", "created": 1, "model": body["model"], "usage": usage}
    piece, kind = ("delta", "chat.completion.chunk") if body.get("stream") else ("message", "chat.completion")
    answer |= {"object": kind, "choices": [{"index": 0, piece: said, "finish_reason": reason}]}
    return Reply.sse([answer, "[DONE]"]) if body.get("stream") else Reply.json(answer)


def page_of_code(page: Path) -> Any:
    """Return the parameter of a page. One that starts processes is slow, except for the README."""
    text = page.read_text()
    is_slow = page.name != "README.md" and ("```sh run" in text or "sys.executable" in text)
    return pytest.param(page, id=page.relative_to(ROOT).as_posix(), marks=pytest.mark.slow if is_slow else ())


@pytest.mark.parametrize(
    "page", [page_of_code(page) for page in PAGES if BLOCK.search(page.read_text()) and page != GETTING_STARTED]
)
def test_the_code_on_the_page_runs(page: Path, tmp_path: Path) -> None:
    run = run_program(script(page), tmp_path)
    if page.name == "README.md":
        assert "It is sunny." in run.stdout
        assert "execute_tool get_weather" in run.stderr


@pytest.mark.slow
def test_each_program_of_getting_started_runs_by_itself_and_prints_what_the_page_shows(tmp_path: Path) -> None:
    text, printed, traces = GETTING_STARTED.read_text(), "", ""
    for block in BLOCK.finditer(text):
        code = block.group(2)
        if block.group(1) != "python":
            code = "\n".join(map(shell_line, code.splitlines()))
        run = run_program(code, tmp_path)
        printed, traces = printed + run.stdout, traces + run.stderr
    for line in ("It is sunny.", "I may not refund that much.", "awaiting_approval", "Eve has her 50 EUR."):
        assert line in printed and line in text
    for line in ("execute_tool get_weather", "refuse_tool refund"):
        assert line in traces and line in text


def run_program(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the code of a page in a folder, beside a service that answers like a model; return what it printed."""
    file = folder / "page.py"
    file.write_text(code)
    (folder / "shell.py").write_text(SHELL)
    with ReplayServer(weather_service) as server:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "OPENAI_"))}
        run = subprocess.run(
            [sys.executable, "-W", "error", str(file)],
            env={**kept, "OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "none", "PATH": PATH},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert run.returncode == 0, run.stderr
    return run


def test_the_pages_contain_code_to_run() -> None:
    assert sum(len(BLOCK.findall(page.read_text())) for page in PAGES) > 10


def test_links_between_the_pages_have_targets() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(((?!http)[^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_path_and_name_in_the_layout_of_contributing_exists() -> None:
    layout = (ROOT / "CONTRIBUTING.md").read_text().partition("## Layout")[2].partition("\n## ")[0]
    table = layout.partition("| To change |")[2]
    paths = re.findall(r"`([\w<>/]+(?:/|\.\w+))`", table)
    assert len(paths) > 15
    for path in paths:
        pattern = path.replace("<provider>", "*")
        assert [*(ROOT / "traced_tools").glob(pattern), *ROOT.glob(pattern)], f"no such path: {path}"
    for name, path in re.findall(r"`(\w+)` in `([\w/.]+)`", table):
        assert re.search(rf"^(?:def |class )?{name}\b", (ROOT / "traced_tools" / path).read_text(), re.MULTILINE), name


def test_links_to_headings_have_targets() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "deploy" / "audit" / "README.md"]:
        for target, heading in re.findall(r"\]\(((?!http)[^)#]*)#([^)]+)\)", page.read_text()):
            file = page if not target else page.parent / target
            assert heading in slugs(file), f"{page.name} links to {target}#{heading}"


def slugs(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_each_page_is_in_the_navigation_of_the_site() -> None:
    project = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    pages = [file for source in SOURCES for file in ROOT.glob(source)]
    sources = [page.relative_to(ROOT).as_posix() for page in pages]
    references = [f"docs/reference/python/{package}.md" for package in reference_names()]
    assert sorted(pages_in(project["nav"])) == sorted([*sources, *references])


def test_a_guide_has_at_most_1500_words_outside_of_its_code() -> None:
    project = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    parts = [
        entry for entry in project["nav"] if entry.keys().isdisjoint({"Home", "Reference", "Changelog", "Contributing"})
    ]
    guides = {page for page in pages_in(parts) if page.startswith("docs/")} - {*LONG_PAGES}
    words = {page: len(FENCE.sub("", (ROOT / page).read_text()).split()) for page in guides}
    assert {page: count for page, count in words.items() if count > 1_500} == {}


def pages_in(entries: list[dict[str, Any]]) -> Iterator[str]:
    """Return the pages of a part of the navigation."""
    for entry in entries:
        (target,) = entry.values()
        yield from [target] if isinstance(target, str) else pages_in(target)


def test_each_public_name_is_in_one_page_of_the_reference() -> None:
    documented = [name for names in reference_names().values() for name in names]
    assert len(documented) == len({*documented})
    assert {*documented} == {name for names in documented_names().values() for name in names}
