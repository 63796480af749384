"""What a function's docstring says of a tool: what it does, and what each parameter is.

griffe splits the parameters, but gets only their own lines, without the types: it would compile those, and warn.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from textwrap import dedent, indent
from types import WrapperDescriptorType
from typing import Any, Literal


@dataclass(frozen=True)
class Docstring:
    """What a docstring tells a model.

    Args:
        description: the text before the first section, each paragraph on one line; empty if there is none.
        parameters: the description of each described parameter on one line, by its name without stars.
    """

    description: str
    parameters: Mapping[str, str]


def read_docstring(function: Callable[..., Any]) -> Docstring:
    """Return what the docstring of `function` says, in the style of Google, NumPy or Sphinx.

    Args:
        function: any callable; what has no docstring says nothing.
    """
    text = "\n".join(line.rstrip() for line in _docstring(function).splitlines()).strip("\n")
    paragraphs = _FIRST_SECTION.split(text, maxsplit=1)[0].split("\n\n")
    return Docstring("\n\n".join(filter(None, map(_one_line, paragraphs))), _parameters(text))


# Whose docstring it is.


def _docstring(function: Any) -> str:
    if inspect.isroutine(function):
        return inspect.getdoc(function) or ""
    if "__doc__" in getattr(function, "__dict__", ()):  # a class, or what `functools.update_wrapper` made a wrapper
        return _own(function)
    if isinstance(function, partial):
        return _docstring(function.func)
    classes = [each for each in type(function).__mro__ if issubclass(each, Callable)]  # type: ignore[arg-type]
    calls = [vars(each)["__call__"] for each in classes if "__call__" in vars(each)]
    return next(filter(None, map(_own, [*calls, *classes])), "")


def _own(documented: Any) -> str:
    """Return the docstring that somebody wrote for `documented`, and none that Python made."""
    text = documented.__doc__
    if not isinstance(text, str) or isinstance(documented, WrapperDescriptorType):
        return ""
    name = re.escape(getattr(documented, "__name__", ""))
    is_signature = re.fullmatch(rf"{name}\(.*\)", text)  # all that a dataclass says of itself
    return "" if is_signature else inspect.cleandoc(text)


# What it says.


@dataclass(frozen=True)
class _Style:
    """How parameters are written: the group `body` of `section` holds them, `head` is the first line of each."""

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

# a known title with a colon or a line below it, or a field like `:param x:` (`:func:` marks up a word)
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
        if bodies and (found := dict(_described(style, "\n".join(bodies)))):
            return found
    return {}


def _described(style: _Style, body: str) -> Iterator[tuple[str, str]]:
    """Yield the names and descriptions in the `body` of parameter sections."""
    for names, description in _split(style, style.head.sub(style.untyped_head, body.replace(r"\*", "*"))):
        for name in names.split(","):
            bare = name.strip(" *`-")
            if bare.isidentifier() and description:
                yield bare, _one_line(description)


def _split(style: _Style, body: str) -> list[tuple[str, str]]:
    import griffe  # only here: it takes a while, and many tools describe no parameter

    # the empty line above keeps the body's margin: `Docstring` takes away what all lines but the first share
    docstring = griffe.Docstring(f"\n{style.title}{indent(body, style.margin)}")
    try:
        sections = docstring.parse(style.name, warnings=False)
    except Exception:  # a tool is not refused for how its docstring is written
        return []
    parts = [section.value for section in sections if isinstance(section, griffe.DocstringSectionParameters)]
    return [(parameter.name, parameter.description) for part in parts for parameter in part]


def _one_line(text: str) -> str:
    return " ".join(text.split())
