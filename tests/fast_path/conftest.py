from __future__ import annotations

from opentelemetry.sdk.version import __version__

from tests.judges.programs import missing
from traced_tools.fast_path.known_sdk import is_known_version


def pytest_runtest_setup() -> None:
    """Skip the tests of a release of the SDK that the fast path does not know: it takes no part there."""
    if not is_known_version():
        missing(
            f"the fast path does not know opentelemetry-sdk {__version__}: add it to KNOWN_VERSIONS and run its tests"
        )
