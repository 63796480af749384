"""Builds the documentation site and checks its links, or serves it on 127.0.0.1.

To be run as `python -m docs.site build` or `python -m docs.site serve` from the repository's root.

The pages are the Markdown files of the repository. They link to each other by their paths, so they read the same on a
code host. Here they are copied to `build/pages` with the files that they link to, beside one page for each package with
the reference of its public names, which mkdocstrings makes from the docstrings.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from docs.house import documented_names

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = ROOT / "build" / "pages"
SITE: Final = ROOT / "build" / "site"
SOURCES: Final = ("*.md", "docs/**/*.md", "deploy/**/*.md")
REFERENCE: Final = PAGES / "docs" / "reference" / "python"
ADDRESS: Final = "127.0.0.1:8000"


def main(command: str) -> int:
    """Build the site and check its links, or serve it; return the exit status."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for pattern in SOURCES:
        for page in ROOT.glob(pattern):
            copy_page(page)
    REFERENCE.mkdir(parents=True)
    for package, names in reference_names().items():
        (REFERENCE / f"{package}.md").write_text("\n".join(reference_page(package, names)), "utf-8")
    options = ["--clean", "--strict"] if command == "build" else ["--dev-addr", ADDRESS]
    status = subprocess.run([sys.executable, "-m", "zensical", command, *options], cwd=ROOT).returncode
    dead = dead_links() if command == "build" and status == 0 else []
    for link in dead:
        print(f"dead link: {link}", file=sys.stderr)
    return status or bool(dead)


def copy_page(page: Path) -> None:
    """Copy a page and the files that it links to, in the layout that they have in the repository.

    The second word after a fence tells the tests how to run the block, and is no word of Markdown for the site. The
    name of a file becomes the title of the block.
    """
    text = page.read_text("utf-8")
    copy = PAGES / page.relative_to(ROOT)
    copy.parent.mkdir(parents=True, exist_ok=True)
    titled = re.sub(r"^```(\w+) ([\w/.]+\.\w+)$", r'```\1 title="\2"', text, flags=re.MULTILINE)
    copy.write_text(re.sub(r"^```(\w+) \w+$", r"```\1", titled, flags=re.MULTILINE), "utf-8")
    for target in re.findall(r"\]\(((?!http|#)[^)#]+)", text):
        source = (page.parent / target).resolve()
        if source.is_file() and source.suffix != ".md":
            linked = PAGES / source.relative_to(ROOT)
            linked.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, linked)


def reference_names() -> dict[str, dict[str, str]]:
    """Return the public names by package, each with the module that defines it.

    The top level repeats names of its packages, so it has those that no package offers.
    """
    packages = documented_names()
    top = packages.pop("traced_tools")
    offered = {name for names in packages.values() for name in names}
    return {
        "traced_tools": {name: module for name, module in top.items() if name not in offered},
        **dict(sorted(packages.items())),
    }


def reference_page(package: str, names: dict[str, str]) -> Iterator[str]:
    """Return the lines of the page of a package."""
    yield from (f"# {package}", "")
    for name, module in sorted(names.items()):
        yield from (f"::: {module}.{name}", "")


class Links(HTMLParser):
    """The links of a page, and the anchors in it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors = {""}
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the link or the anchor of an element."""
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(value)
            elif name == "id" and value:
                self.anchors.add(value)


def dead_links() -> list[str]:
    """Return the links of the site to pages, files or anchors that do not exist."""
    pages = {page: Links(page) for page in SITE.rglob("*.html") if page.name != "404.html"}
    dead = []
    for page, links in pages.items():
        for target in links.targets:
            address = urlsplit(target)
            if address.scheme or address.netloc:
                continue
            file = (page.parent / unquote(address.path)).resolve() if address.path else page
            file = file / "index.html" if file.is_dir() else file
            if not file.is_file() or (file in pages and unquote(address.fragment) not in pages[file].anchors):
                dead.append(f"{page.relative_to(SITE)} -> {target}")
    return dead


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
