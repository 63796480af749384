"""The file in which the gateway keeps the tokens of a login."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken, ProtectedResourceMetadata
from mcp.shared.auth_utils import calculate_token_expiry
from pydantic import BaseModel

from traced_tools.core.disk import replace_file
from traced_tools.core.file_access import foreign, info_of, open_to
from traced_tools.errors import ConfigurationError

_OTHERS: Final = 0o077


class Login(BaseModel):
    """A login at a server, as the file has it.

    Attributes:
        server: the URL of the server, the only one that gets the tokens.
        redirect: the registered URL to which browsers return.
        client: the registration.
        tokens: the tokens.
        expires_at: when the access token expires, in seconds since 1970; None if it is not known.
        authorization_server: where tokens are refreshed.
        resource: what the tokens are for.
    """

    server: str
    redirect: str | None = None
    client: OAuthClientInformationFull | None = None
    tokens: OAuthToken | None = None
    expires_at: float | None = None
    authorization_server: OAuthMetadata | None = None
    resource: ProtectedResourceMetadata | None = None


class TokenFile:
    """A file with a login that only its owner can read.

    Args:
        path: the file, JSON text. It is written when there is a registration.
        server: the URL of the server.
    """

    def __init__(self, path: Path, server: str) -> None:
        self._path = path
        self._server = server

    def read(self) -> Login:
        """Return the login, which is empty if there is no file.

        Raises:
            ConfigurationError: if the file can't be read, has a login at another server, or others can read it.
        """
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return Login(server=self._server)
        except OSError as error:
            raise self._cannot_be("read", error) from None
        self._check_access()
        try:
            login = Login.model_validate_json(data)
        except ValueError:  # whose text quotes tokens
            raise ConfigurationError(f"{self._path} is not a file of tokens: pass another file") from None
        if login.server != self._server:
            raise ConfigurationError(f"the tokens in {self._path} are for another server: pass another file")
        return login

    def write(self, **changes: Any) -> None:
        """Change parts of the login.

        Raises:
            ConfigurationError: if the file can't be written, and as `read` does.
        """
        login = self.read().model_copy(update=changes)
        try:
            replace_file(self._path, login.model_dump_json(exclude_none=True, indent=2).encode())
        except OSError as error:
            raise self._cannot_be("written", error) from None

    def _check_access(self) -> None:
        info = info_of(self._path)
        if os.name != "posix" or info is None:
            return
        problem = foreign(info) or (open_to(info, _OTHERS) if info.st_mode & _OTHERS else None)
        if problem is not None:
            raise ConfigurationError(f"the file of tokens {self._path} {problem}: chmod 600 it, or pass another file")

    def _cannot_be(self, what: str, error: OSError) -> ConfigurationError:
        return ConfigurationError(f"{self._path} cannot be {what}: {error.strerror or type(error).__name__}")

    # What the SDK asks of a store of tokens.

    async def get_tokens(self) -> OAuthToken | None:
        """Return the tokens."""
        return self.read().tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Write the tokens, and when the access token expires."""
        self.write(tokens=tokens, expires_at=calculate_token_expiry(tokens.expires_in))

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the registration."""
        return self.read().client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Write the registration."""
        self.write(client=client_info)
