"""A real PostgreSQL: a new cluster on a free port of this machine, which is gone in the end."""

from __future__ import annotations

import glob
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import URL, make_url

from tests.judges.programs import ROOT, free_port, missing, until

PACKAGE = "apt-get install postgresql"
SQL = ROOT / "deploy/audit/postgresql.sql"
OWNER, WRITER, READER = "postgres", "my_agents", "my_auditor"
_MEMBERSHIPS = {WRITER: "traced_tools_audit_writer", READER: "traced_tools_audit_reader"}
_ENDING_WITH_US = ("setpriv", "--pdeathsig=INT") if shutil.which("setpriv") else ()
"""Has the server stop when the tests are killed; without it, it stays then."""
_SECONDS_TO_START = 60
_SECONDS_TO_STOP = 20
_SECONDS_FOR_A_STATEMENT = 20


class Server:
    """A cluster and the server that runs on it, or does not.

    Attributes:
        password: that of all roles.
        port: where it listens, on 127.0.0.1.
    """

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs, self._folder = programs, folder
        self._process: subprocess.Popen[bytes] | None = None
        self.password = secrets.token_hex()
        self.port = free_port()
        self._initialize()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "jit": "off",  # needs LLVM, which may not be here
            "fsync": "off",  # only a crash of the machine needs it; with it, stopping syncs thousands of files
            "shared_buffers": "64MB",
        }
        options = (word for name, value in settings.items() for word in ("-c", f"{name}={value}"))
        command = [*_ENDING_WITH_US, str(self._programs / "postgres"), "-D", str(self._data), *options]
        with (self._folder / "log.txt").open("ab") as log:
            process: subprocess.Popen[bytes] = subprocess.Popen(command, stdout=log, stderr=log, **self._somebody)
        self._process = process
        until(self._answers, _SECONDS_TO_START, "PostgreSQL that answers", process)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it, if it runs: SIGINT ends sessions (fast), SIGQUIT leaves everything as it lies (immediate)."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(_SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGQUIT)  # SIGKILL would leave processes that keep the next server from starting
            process.wait()

    def url(self, database: str, role: str = OWNER, password: str | None = None) -> str:
        """Return where a database is, with the password."""
        made = URL.create(
            "postgresql+psycopg",
            role,
            password or self.password,
            "127.0.0.1",
            self.port,
            database,
            {"sslmode": "disable"},
        )
        return made.render_as_string(hide_password=False)

    def connect(self, database: str, role: str = OWNER) -> psycopg.Connection[Any]:
        """Open a connection that commits each statement."""
        url = make_url(self.url(database, role)).set(drivername="postgresql")
        options = f"-c statement_timeout={_SECONDS_FOR_A_STATEMENT}s"
        return psycopg.connect(url.render_as_string(hide_password=False), autocommit=True, options=options)

    def psql(self, database: str, file: Path, *options: str) -> None:
        """Run a file through `psql`."""
        url = make_url(self.url(database)).set(drivername="postgresql").render_as_string(hide_password=False)
        program = str(self._programs / "psql")
        command = [program, "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", *options, "--file=-", url]
        with file.open("rb") as text:
            subprocess.run(command, check=True, stdin=text, stdout=subprocess.DEVNULL, **self._somebody)

    @property
    def log(self) -> str:
        """What it has logged."""
        return (self._folder / "log.txt").read_text(errors="replace")

    def _answers(self) -> bool:
        try:
            self.connect(OWNER).close()
        except psycopg.OperationalError:
            return False
        return True

    def _initialize(self) -> None:
        self._data = self._folder / "data"
        secret = self._folder / "password"
        secret.write_text(self.password)
        for path in (self._folder, secret):
            shutil.chown(path, *_ids())
        options = ("--no-sync", "--locale=C", "--encoding=UTF8", "--auth=scram-sha-256", f"--username={OWNER}")
        command = [str(self._programs / "initdb"), "-D", str(self._data), f"--pwfile={secret}", *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **self._somebody)

    @property
    def _somebody(self) -> dict[str, Any]:
        """How a program is started as somebody, in what surroundings."""
        libraries = glob.glob(str(self._programs.parents[2] / "*-linux-gnu"))  # where it is unpacked, beside it
        own = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
        somebody: dict[str, Any] = {"cwd": self._folder, "env": {**own, "LD_LIBRARY_PATH": ":".join(libraries)}}
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            somebody |= dict(zip(("user", "group"), _ids(), strict=True), extra_groups=())
        return somebody


class Database:
    """A database with the table and the roles of `deploy/audit/postgresql.sql`."""

    def __init__(self, server: Server, name: str) -> None:
        self.server, self.name = server, name
        with server.connect(OWNER) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        self.set_up()
        with self.connect() as connection:
            for role, membership in _MEMBERSHIPS.items():
                if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [role]).fetchone():
                    connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{server.password}' IN ROLE {membership}")

    def set_up(self) -> None:
        """Run the SQL."""
        with self.connect() as connection:
            connection.execute(SQL.read_bytes())

    def connect(self, role: str = OWNER) -> psycopg.Connection[Any]:
        """Open a connection that commits each statement."""
        return self.server.connect(self.name, role)

    def url(self, role: str = WRITER, password: str | None = None) -> str:
        """Return where it is, with the password."""
        return self.server.url(self.name, role, password)


@contextmanager
def serving(programs: Path | None = None) -> Iterator[Server]:
    """Run a server until the block ends; if that fails, show the end of what it logged.

    Args:
        programs: the folder with the programs of PostgreSQL; None for those that are installed here.
    """
    programs = _programs() if programs is None else programs
    with tempfile.TemporaryDirectory(prefix="traced_tools", dir="/tmp") as folder:  # pytest's are closed to others
        server = Server(programs, Path(folder))
        try:
            server.start()
            yield server
        except BaseException:
            print(server.log[-4000:])
            raise
        finally:
            server.stop(signal.SIGQUIT)  # what it holds goes anyway


def _programs() -> Path:
    """Return the folder with the programs of the newest PostgreSQL that is here."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[4]))
    found = shutil.which("postgres") or next(reversed(versions), None)  # Debian puts it on no path
    if found is None:
        missing(f"postgres is not here: {PACKAGE}")
        raise AssertionError
    return Path(found).resolve().parent


def _ids() -> tuple[int, int]:
    """Return the user and group ids for the server: ours, and somebody's if we are root."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    names = {user.pw_name for user in pwd.getpwall()}
    user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    return user.pw_uid, user.pw_gid
