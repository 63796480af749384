"""Saves boards through Grafana's HTTP API: https://grafana.com/docs/grafana/latest/developers/http_api/.

A file in the classic schema is saved by `POST /api/dashboards/db`, which Grafana 10 to 13 have. No message contains the
token.
"""

from __future__ import annotations

import json
import ssl
import time
import zlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, NoReturn, Self
from urllib.parse import urlsplit

import httpx

from traced_tools._version import __version__
from traced_tools.cli.audit.formatting import escape
from traced_tools.errors import ConfigurationError, TracedToolsError

FOLDER: Final = {"uid": "traced-tools", "title": "traced_tools"}
_TIMEOUT: Final = 30.0
_MOST_BYTES: Final = 1_048_576
"""The size of an answer, before and after decompression. Grafana's are a few hundred bytes."""
_INFLATABLE: Final = ("gzip", "deflate")
_CONFLICT: Final = (409, 412)
"""What Grafana answers if the folder exists: 409, or 412 in releases that compare versions first."""
_REASONS: Final = {
    "name-exists": "another board of the folder has its title or uid: rename or delete that board",
    "plugin-dashboard": "the board belongs to a plugin: delete that board",
    "version-mismatch": "another user has changed it in the meantime: run the import again",
}
"""What to do about the reasons that the API documents for status 412."""


class ImportFailed(TracedToolsError):
    """Grafana cannot be reached, or refuses a request."""


class _TooLarge(Exception):
    """An answer is larger than any of Grafana's."""


class _Answer:
    """An answer whose body is within the limit.

    Args:
        response: its status and headers.
        body: its body, decompressed.
    """

    def __init__(self, response: httpx.Response, body: bytes) -> None:
        self.status_code = response.status_code
        self.headers = response.headers
        self.is_success = response.is_success
        self.is_redirect = response.is_redirect
        self.body = body


def _inflate(raw: bytes, encoding: str) -> bytes:
    """Return a body without its compression, or nothing if it cannot be read.

    Raises:
        _TooLarge: it exceeds the limit, compressed or not.
    """
    body = raw
    if encoding in _INFLATABLE:
        try:
            body = zlib.decompressobj(wbits=47).decompress(raw, _MOST_BYTES + 1)  # gzip or zlib, as its header says
        except zlib.error:
            body = b""
    if len(body) > _MOST_BYTES:
        raise _TooLarge
    return body


class Grafana:
    """A Grafana server. Use it in a `with` block.

    Args:
        url: its address, with the path if it has one.
        token: the token of a service account that may create folders and boards.

    Raises:
        ConfigurationError: the address or the token cannot be used.
    """

    def __init__(self, url: str, token: str) -> None:
        self._url = _checked_url(url)
        self._token = _checked_token(token)
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json", "Accept-Encoding": "gzip"}
        self._http = httpx.Client(base_url=self._url, headers=headers, timeout=_TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.close()

    def create_folder(self) -> None:
        """Create the folder of the boards, unless it exists.

        Raises:
            ImportFailed: Grafana refuses.
        """
        what = f"folder {FOLDER['title']}"
        # It is created first, because Grafana may answer 403 instead of 404 to a question about a missing folder.
        answer = self._request(what, "POST", "/api/folders", FOLDER)
        if answer.status_code in _CONFLICT:
            existing = self._request(what, "GET", f"/api/folders/{FOLDER['uid']}")
            if not existing.is_success:
                raise ImportFailed(
                    f"{what}: Grafana has another folder of this name, or hides this folder from the token "
                    f"({answer.status_code}, {existing.status_code}): rename that folder, or let the token's service "
                    "account edit it"
                )
            answer = existing
        if self._result(what, answer).get("uid") != FOLDER["uid"]:
            self._no_grafana(what, answer)

    def save(self, board: Mapping[str, Any]) -> str:
        """Save a board in the folder, in place of the one with its uid, and return its address.

        Raises:
            ImportFailed: Grafana refuses.
        """
        what = f"board {board['uid']}"
        body = {
            "dashboard": {**board, "id": None},
            "folderUid": FOLDER["uid"],
            "message": f"traced-tools {__version__}",
            "overwrite": True,
        }
        answer = self._request(what, "POST", "/api/dashboards/db", body)
        if self._result(what, answer).get("uid") != board["uid"]:
            self._no_grafana(what, answer)
        return f"{self._url}/d/{board['uid']}"

    def _request(self, what: str, method: str, path: str, body: object = None) -> _Answer:
        deadline = time.monotonic() + _TIMEOUT
        try:
            with self._http.stream(method, path, json=body) as answer:
                raw = bytearray()
                for piece in answer.iter_raw():
                    raw += piece
                    if len(raw) > _MOST_BYTES:
                        break
                    if time.monotonic() > deadline:
                        raise httpx.ReadTimeout("the answer does not end")
                return _Answer(answer, _inflate(bytes(raw), answer.headers.get("content-encoding", "")))
        except _TooLarge:
            problem = f"the answer of {self._url} has more than {_MOST_BYTES // 1024} KiB, so it is not that of Grafana"
        except httpx.TimeoutException:
            problem = f"{self._url} did not answer in {_TIMEOUT:g} seconds: check the address and the network"
        except httpx.TransportError as error:
            if _is_tls(error):
                problem = (
                    f"the certificate of {self._url} is not trusted, or it does not speak TLS: pass the address of the "
                    "certificate, or set SSL_CERT_FILE to the certificate of its authority"
                )
            else:
                problem = f"{self._url} cannot be reached ({type(error).__name__}): check the address, and that it runs"
        raise ImportFailed(f"{what}: {problem}")

    def _result(self, what: str, answer: _Answer) -> dict[str, Any]:
        """Return the JSON object of a successful answer; raise what to do about any other answer."""
        try:
            result = json.loads(answer.body)
        except (ValueError, RecursionError):
            result = None
        fields = result if isinstance(result, dict) else {}
        quotation = self._quote_message(fields)
        match answer.status_code:
            case 200 if fields:
                return fields
            case 200:
                self._no_grafana(what, answer)
            case 400 if "provisioned" in quotation:
                problem = "Grafana loads it from a file: replace the file with that of `traced-tools dashboards export`"
            case 401:
                problem = "Grafana refuses the token: pass the token of a service account, which has not expired"
            case 403:
                problem = "the token may not do this: give its service account the role Editor"
            case 404:
                problem = "there is no such API: pass Grafana's address with its path, such as https://host/grafana"
            case 412 if (reason := _REASONS.get(str(fields.get("status")))) is not None:
                problem = reason
            case status if answer.is_redirect:
                target = escape(answer.headers.get("location", "").replace(self._token, "[token]"))
                problem = f"{self._url} redirects to {target}: pass the address of Grafana itself"
            case status if status >= 500 or status == 429:
                problem = "Grafana has a problem: try again later, and read its log"
            case _:
                problem = "Grafana refuses the request"
        raise ImportFailed(f"{what}: {problem} ({answer.status_code}{quotation})")

    def _quote_message(self, fields: Mapping[str, Any]) -> str:
        """Return the message of an error, in which a proxy could repeat the token."""
        message = fields.get("message")
        return f": {escape(message.replace(self._token, '[token]'))}" if isinstance(message, str) else ""

    def _no_grafana(self, what: str, answer: _Answer) -> NoReturn:
        raise ImportFailed(
            f"{what}: the answer of {self._url} ({answer.status_code}) is not that of Grafana: pass Grafana's address"
        )


def _checked_url(url: str) -> str:
    # the messages don't repeat the address, which may contain a password
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        is_usable = False
    if not is_usable:
        raise ConfigurationError("--grafana-url is no http or https address: pass one such as https://host/grafana")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigurationError("--grafana-url has a user, a query or a fragment: pass only the address and its path")
    return url.rstrip("/")


def _checked_token(token: str) -> str:
    # a header cannot carry other characters, and the error of the HTTP client would repeat them
    stripped = token.strip()
    if not stripped:
        raise ConfigurationError("the token is empty: pass --token TOKEN or set GRAFANA_TOKEN")
    if not (stripped.isascii() and stripped.isprintable() and " " not in stripped):
        raise ConfigurationError("the token contains characters that no token has: copy it again from Grafana")
    return stripped


def _is_tls(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False
