"""How requests to a server at a URL are authenticated by an `httpx2.Auth`, such as one for OAuth."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

import httpx2
from mcp.client.auth import OAuthClientProvider

from traced_tools.errors import ConfigurationError
from traced_tools.observe.failures import error_type

_MARK: Final = "traced_tools.authentication"
_TIMEOUT: Final = httpx2.Timeout(30.0)
"""How long an authorization server may take: the MCP SDK sets no limit."""


class RequestNotSent(Exception):
    """A request was not sent, because its headers or its authentication failed.

    Its text says why, and quotes no text of an error.
    """


class LoginFailed(Exception):
    """A login failed. Its text quotes nothing but the code of the error."""


class Authentication(httpx2.Auth):
    """Authenticates requests by an `httpx2.Auth`, and keeps the texts of its errors, which may quote tokens.

    Args:
        auth: authenticates requests.
    """

    def __init__(self, auth: httpx2.Auth) -> None:
        self._auth = auth

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Yield the request and those that authentication needs; raises `RequestNotSent`."""
        if _add_valid_token(self._auth, request):
            response = yield request
            if not _asks_for_token(response):
                return
        flow = self._auth.async_auth_flow(request)
        try:
            outgoing = await flow.__anext__()
            while True:
                if outgoing is not request:
                    _prepare(outgoing)
                response = yield outgoing
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            return
        except (LoginFailed, ConfigurationError) as error:
            raise RequestNotSent(f"authentication failed: {error}") from None
        except Exception as error:
            raise RequestNotSent(f"authentication failed with {error_type(error)}") from None
        finally:
            await flow.aclose()


def is_of_authentication(request: httpx2.Request) -> bool:
    """Return whether a request was made for authentication, and not for the server."""
    return _MARK in request.extensions


def _add_valid_token(auth: httpx2.Auth, request: httpx2.Request) -> bool:
    """Add the token if it is valid, and return whether it is.

    The SDK has each request wait until the one before is answered, so a call could not be cancelled while it runs.
    """
    if not isinstance(auth, OAuthClientProvider) or not auth.context.is_token_valid():
        return False
    auth._add_auth_header(request)
    return True


def _asks_for_token(response: httpx2.Response) -> bool:
    """Return whether a server wants another token, or one with more scopes."""
    challenge = response.headers.get("www-authenticate", "")
    return response.status_code == 401 or (response.status_code == 403 and "insufficient_scope" in challenge)


def _prepare(request: httpx2.Request) -> None:
    request.extensions[_MARK] = True
    request.extensions.setdefault("timeout", _TIMEOUT.as_dict())
    request.headers.setdefault("Accept-Encoding", "identity")
