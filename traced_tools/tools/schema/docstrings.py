"""Reads the description of a tool and of its parameters from a function's docstring.

griffe parses the parameters. It gets only their own lines, without types, because it would compile types and warn.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from textwrap import dedent, indent
from types import WrapperDescriptorType
from typing import Any, Literal

from traced_tools.core.frozen import frozen


@frozen
class Docstring:
    """The parts of a docstring that a model reads.

    Args:
        description: the text before the first section, one line per paragraph; empty if there is none.
        parameters: the descriptions of parameters, one line each, by name without stars.
    """

    description: str
    parameters: Mapping[str, str]


def read_docstring(function: Callable[..., Any]) -> Docstring:
    """Parse the docstring of `function`, in the style of Google, NumPy or Sphinx.

    Args:
        function: any callable. Without a docstring, the result is empty.
    """
    text = "\n".join(line.rstrip() for line in _docstring(function).splitlines()).strip("\n")
    paragraphs = _FIRST_SECTION.split(text, maxsplit=1)[0].split("\n\n")
    return Docstring("\n\n".join(filter(None, map(_one_line, paragraphs))), _parameters(text))


# Finding the docstring.


def _docstring(function: Any) -> str:
    if inspect.isroutine(function):
        return inspect.getdoc(function) or ""
    if "__doc__" in getattr(function, "__dict__", ()):  # a class, or a wrapper made by `functools.update_wrapper`
        return _own_docstring(function)
    if isinstance(function, partial):
        return _docstring(function.func)
    classes = [kind for kind in type(function).__mro__ if issubclass(kind, Callable)]  # type: ignore[arg-type]
    calls = [vars(kind)["__call__"] for kind in classes if "__call__" in vars(kind)]
    return next(filter(None, map(_own_docstring, [*calls, *classes])), "")


def _own_docstring(documented: Any) -> str:
    """Return the docstring of `documented`, empty if Python generated it."""
    text = documented.__doc__
    if not isinstance(text, str) or isinstance(documented, WrapperDescriptorType):
        return ""
    name = re.escape(getattr(documented, "__name__", ""))
    is_signature = re.fullmatch(rf"{name}\(.*\)", text)  # Python generates it for a dataclass
    return "" if is_signature else inspect.cleandoc(text)


# Parsing it.


@frozen
class _Style:
    """How a style writes parameters: the group `body` of `section` contains them, `head` matches the start of each."""

    name: Literal["google", "numpy", "sphinx"]
    section: re.Pattern[str]
    head: re.Pattern[str]
    untyped_head: str
    title: str = ""
    margin: str = ""


def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE)


_PARAMETERS = r"(?:(?:keyword|other) )?(?:arg(?:ument)?|param(?:eter)?)s"
_OTHERS = (
    "attributes|examples?|exceptions|notes?|raises?|receives?|references|returns?|see also|todo|type parameters|"
    "warnings?|warns|yields?"
)
_UNDERLINE = r"\n--+$"

# a known title with a colon or an underline, or a field like `:param x:` (`:func:` marks up a word)
_FIRST_SECTION = _pattern(rf"^(?:(?:{_PARAMETERS}|{_OTHERS})(?::$|:?{_UNDERLINE})|[:@]\w[^:\n]*:(?!`))")

_STYLES = (
    _Style(
        "sphinx",
        section=_pattern(r"(?P<body>^:(?:arg(?:ument)?|key(?:word)?|param(?:eter)?) [^:\n]+:.*(?:\n+ .*|\n[^:\s].*)*)"),
        head=_pattern(r"^:\w+\s(?:[^:\n]*\s)?([^\s:]+)\s*:"),
        untyped_head=r":param \1:",
    ),
    _Style(
        "numpy",
        section=_pattern(rf"^{_PARAMETERS}:?{_UNDERLINE}\n(?P<body>(?:(?!\S.*{_UNDERLINE}).*\n?)*)"),
        head=_pattern(r"^([^\s:][^:\n]*):.*"),
        untyped_head=r"\1",
        title="Parameters\n----------\n",
    ),
    _Style(
        "google",
        section=_pattern(rf"^{_PARAMETERS}:\n+(?P<body>(?P<margin> +)\S.*(?:\n+(?P=margin).*)*)"),
        head=_pattern(r"^([^\s:(][^:(\n]*)\(.*?\)\s*:"),
        untyped_head=r"\1:",
        title="Args:\n",
        margin="    ",
    ),
)


def _parameters(text: str) -> dict[str, str]:
    for style in _STYLES:
        bodies = [dedent(section["body"]) for section in style.section.finditer(text)]
        if bodies and (descriptions := dict(_descriptions(style, "\n".join(bodies)))):
            return descriptions
    return {}


def _descriptions(style: _Style, body: str) -> Iterator[tuple[str, str]]:
    """Yield the name and description of each parameter in `body`, the text of parameter sections."""
    for names, description in _split(style, style.head.sub(style.untyped_head, body.replace(r"\*", "*"))):
        for name in names.split(","):
            bare = name.strip(" *`-")
            if bare.isidentifier() and description:
                yield bare, _one_line(description)


def _split(style: _Style, body: str) -> list[tuple[str, str]]:
    import griffe  # imported here: importing it is slow, and many tools describe no parameter

    # the empty first line keeps the margin: `Docstring` removes the indentation that all other lines share
    docstring = griffe.Docstring(f"\n{style.title}{indent(body, style.margin)}")
    try:
        sections = docstring.parse(style.name, warnings=False)
    except Exception:  # a malformed docstring must not make a tool unusable
        return []
    parts = [section.value for section in sections if isinstance(section, griffe.DocstringSectionParameters)]
    return [(parameter.name, parameter.description) for part in parts for parameter in part]


def _one_line(text: str) -> str:
    return " ".join(text.split())
