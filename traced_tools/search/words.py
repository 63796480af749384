"""The words of a text, by which an index compares queries with tools."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

_MOST_CHARACTERS: Final = 4_000
"""How many characters of a query are read. A model writes the query, or copies it from a user."""
_MOST_WORD: Final = 64
"""The number of characters by which words are compared."""
_UNSPACED: Final = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Characters of Chinese and Japanese, which are written without spaces: each counts as a word."""
_RUN: Final = re.compile(f"[{_UNSPACED}]|[^\\W\\d_{_UNSPACED}]+|\\d+")
_CASE_CHANGES: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])(?![A-Z]s\b)")
"""Where a name changes case: `getWeather`, `HTTPServer`, but not `IDs`."""
_URL: Final = re.compile(r"\b(?:https?://|www\.)\S+")
_FILE: Final = re.compile(r"(?<![\w./~-])[\w./~-]*\.([A-Za-z]\w{1,4})\b(?![\w/])")
_DIRECTORY: Final = re.compile(r"(?<![\w./~-])(?:~|\.{1,2})?/[\w./-]+")

_FUNCTION_WORDS: Final = """
    a about above after again against all also am an and any are aren as at be because been before being below between
    both but by can could couldn d did didn do does doesn doing don down during each few for from further had hadn has
    hasn have haven having he her here hers herself him himself his how i if in into is isn it its itself just ll m me
    might more most must my myself no nor not now of off on once only or other our ours ourselves out over own re s same
    shall she should shouldn so some such t than that the their theirs them themselves then there these they this those
    through to too under until up us ve very was wasn we were weren what when where which while who whom whose why will
    with won would wouldn you your yours yourself yourselves
"""
_REQUEST_WORDS: Final = """
    etc get give hello help hey hi know let like make may need please provide show tell thank thanks use used using want
"""
STOP_WORDS: Final = frozenset(f"{_FUNCTION_WORDS} {_REQUEST_WORDS}".split())
"""Function words of English, and words by which a request begins. Neither says what a tool does."""

_FILE_KINDS: Final = {
    "word document": "doc docx odt rtf",
    "excel spreadsheet": "ods xls xlsx",
    "powerpoint presentation": "odp ppt pptx",
    "pdf": "pdf",
    "csv table": "csv tsv",
    "markdown": "markdown md",
    "text": "log txt",
    "image picture": "bmp gif jpeg jpg png svg tiff webp",
    "audio music": "flac m4a mp3 ogg wav",
    "video": "avi mkv mov mp4 webm",
    "archive": "7z gz rar tar zip",
    "html": "htm html",
    "json": "json",
    "xml": "xml",
    "yaml": "yaml yml",
    "code": "c cpp cs go java js php py rb rs sh ts",
}
_KIND_OF: Final = {ending: kind for kind, endings in _FILE_KINDS.items() for ending in endings.split()}
"""What a file with an ending is. A tool says that it reads spreadsheets, a query that it is about `costs.xlsx`."""


def words_of(text: str) -> Iterator[str]:
    """Yield the words of a text in order: its runs of letters and of digits, split where the case changes, folded."""
    for word in _RUN.findall(fold(_CASE_CHANGES.sub(" ", text))):
        yield word[:_MOST_WORD]


def fold(text: str) -> str:
    """Return a text in the form in which texts are compared: without regard to case, width and ligatures."""
    return text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()


def query_words(query: str) -> list[str]:
    """Return the distinct words of a query in order, without stop words and single ASCII characters.

    The words of a URL and of a path say little about a tool, so the words for what they are replace them: a file, the
    kind of file, a directory.
    """
    plain = _URL.sub(" url ", query[:_MOST_CHARACTERS])
    plain = _DIRECTORY.sub(" directory ", _FILE.sub(_described_file, plain))
    words = dict.fromkeys(words_of(plain))
    return [word for word in words if word not in STOP_WORDS and (len(word) > 1 or not word.isascii())]


def _described_file(match: re.Match[str]) -> str:
    ending = match[1].lower()
    if ending in _KIND_OF:
        return f" file {ending} {_KIND_OF[ending]} "
    return f" file {ending} " if match[0].startswith(("/", "~", ".")) else match[0]
