"""Starts a PostgreSQL server of Debian's in a folder of its own, as nobody where the tests run as root."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conftest import POSTGRES

USER, PASSWORD = "searcher", "s3cret-0f-tests"


class Server:
    """A Server is a running server with one database, whose only user has a password."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.restarts = folder, 0
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        (folder / "password").write_text(PASSWORD)
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            for path in (folder, folder / "password"):
                os.chown(path, nobody.pw_uid, nobody.pw_gid)
        login = ("-A", "scram-sha-256", "-U", USER, f"--pwfile={folder}/password")
        self._run("initdb", "-D", f"{folder}/data", *login, "--no-sync", "-E", "UTF8", "--locale=C")
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        # Without fsync a server that is killed loses nothing: only a machine that loses power does.
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self._folder} -c fsync=off"
        log = f"{self._folder}/server.log"
        self._run("pg_ctl", "-D", f"{self._folder}/data", "-w", "-l", log, "-o", options, "start")

    def stop(self, mode: str = "immediate") -> None:
        """Ends the server, as a crash does unless another mode is given."""
        self._run("pg_ctl", "-D", f"{self._folder}/data", "-w", "-m", mode, "stop")

    def _run(self, program: str, *arguments: str) -> None:
        as_nobody = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"] if os.getuid() == 0 else []
        path = shutil.which(program, path=POSTGRES)
        done = subprocess.run(
            [*as_nobody, str(path), *arguments],
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=(log := (self._folder / f"{program}.log").open("a")),
            stderr=log,
            timeout=60,
        )
        assert done.returncode == 0, (self._folder / f"{program}.log").read_text()


@contextmanager
def server() -> Iterator[Server]:
    """Yields a server that runs until the end of the block, and whose files are gone then."""
    # Not in a folder of pytest's, which nobody else may enter.
    with tempfile.TemporaryDirectory(prefix="tl_attention_postgres_", dir="/tmp") as folder:
        running = Server(Path(folder))
        try:
            yield running
        finally:
            running.stop()
