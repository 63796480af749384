"""Names of variables and parameters are nouns, not only participles or pronouns; a class has its name for itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import traced_tools

ROOT = Path(traced_tools.__file__).parent
VAGUE = re.compile(
    "_*(each|found|given|made|asked|wanted|shown|known|kept|left|written|seen|sent|added|taken|held|told|done|named"
    "|listed|begun|decided|waited|chosen|used|changed|reached|stored)"
)
"""Names that do not say what they stand for. A leading underscore makes no difference."""
BUDGET = 13
"""How many such names the package has. The number may only fall: lower it after a change that renames some."""


def test_no_name_is_added_that_is_only_a_participle_or_a_pronoun() -> None:
    vague = [
        f"{path.relative_to(ROOT.parent)}:{line}: {name}"
        for path in sorted(ROOT.rglob("*.py"))
        for line, name in vague_names(path.read_text("utf-8"))
    ]
    if len(vague) > BUDGET:
        problem = f"{len(vague)} names are only a participle or a pronoun, {BUDGET} are allowed: rename yours to a noun"
        pytest.fail("\n".join([problem, *vague]), pytrace=False)


def test_variables_and_parameters_of_all_kinds_are_counted() -> None:
    code = """_known, chosen_name = 1, 2
def run(given, *seen, kept=None, **used): return [each for each in given]
lambda sent: (made := sent)
with open(found) as left: left.added = wanted = left.taken
"""
    names = " ".join(f"{line}:{name}" for line, name in vague_names(code))
    assert names == "1:_known 2:each 2:given 2:kept 2:seen 2:used 3:made 3:sent 4:left 4:wanted"


def vague_names(code: str) -> Iterator[tuple[int, str]]:
    """The line and the name of each vague variable or parameter, wherever it is assigned."""
    names = (
        (node.lineno, node.arg if isinstance(node, ast.arg) else node.id)
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    )
    return ((line, name) for line, name in sorted(names) if VAGUE.fullmatch(name))


def test_the_name_of_a_class_names_one_class() -> None:
    places: dict[str, list[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        for name in class_names(path.read_text("utf-8")):
            places.setdefault(name, []).append(str(path.relative_to(ROOT.parent)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_classes_inside_functions_and_classes_are_counted() -> None:
    code = "class A:\n    class B: ...\ndef run():\n    class C: ...\nif True:\n    class A: ...\n"
    assert sorted(class_names(code)) == ["A", "A", "B", "C"]


def class_names(code: str) -> Iterator[str]:
    return (node.name for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ClassDef))
