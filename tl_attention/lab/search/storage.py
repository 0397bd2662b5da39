"""A storage is the database in which workers share studies: each study's log, who works on it, and what each holds.

The log is that of Optuna's JournalStorage. It is one table here, so that a trial is one row, written in the transaction
that ends what its worker held for it: Optuna's own tables take some 260 statements for a trial of 84 parameters, with
the study locked. Entries of a study are numbered without a gap, so nobody who reads them on misses one.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from optuna.storages.journal import BaseJournalBackend
from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    event,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError

from tl_attention.errors import InputError

T = TypeVar("T")
# How long a search waits for a database that was there, and how often it tries again.
PATIENCE_S, AGAIN_S = 300.0, 0.5
# How long SQLite waits for another process, and PostgreSQL for a connection.
BUSY_S, CONNECT_S = 60, 10
# Any number: who makes the tables holds it.
MAKING = 7_700_077
TABLES, NAME = MetaData(), String(200)


def _table(name: str, keys: int, /, **columns: Any) -> Table:
    """Returns the table with these columns, of which the first ones are its key."""
    made = (Column(of, kind, primary_key=n < keys, autoincrement=False) for n, (of, kind) in enumerate(columns.items()))
    return Table(f"search_{name}", TABLES, *made)


# `of` says in JSON what a study is of.
STUDIES = _table("studies", 1, study=NAME, of=Text, entries=Integer)
# An entry is JSON, compressed: most of it is what parameters may be.
ENTRIES = _table("entries", 2, study=NAME, number=Integer, entry=LargeBinary)
WORKERS = _table(
    "workers", 2, study=NAME, worker=Integer, token=NAME, name=Text, beat=Integer, state=NAME, lapses=Integer, told=Text
)
# `work` is what another worker needs to do it, in JSON; without it there is nothing to do.
CLAIMS = _table("claims", 2, study=NAME, key=NAME, worker=Integer, work=Text, ended=Boolean)
# The few that have not ended are asked for at each beat.
Index("search_claims_open", CLAIMS.c.study, CLAIMS.c.ended)
# The drivers of known schemes.
DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
INSERTS: dict[str, Callable[[Table], Any]] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


class Storage:
    """A Storage is a database of a URL, whose password no text of it shows.

    Raises InputError where the URL is none, or the database cannot be used.
    """

    def __init__(self, url: str) -> None:
        try:
            given = make_url(url)
            # A password may stand among the options too.
            self.shown = given.set(query={}).render_as_string(hide_password=True)
        except (SQLAlchemyError, ValueError):
            raise InputError("--storage: no URL of a database, expected one such as sqlite:///runs/search.db") from None
        values = [value for one in given.query.values() for value in ([one] if isinstance(one, str) else one)]
        self._secret = {*filter(None, (given.password, *values))}
        self._patience_s = 0.0
        scheme = given.drivername.partition("+")[0]
        if given.drivername not in {*DRIVERS, *DRIVERS.values()}:
            raise InputError(f"--storage: {given.drivername}:// is not known, expected sqlite:// or postgresql://")
        if scheme == "sqlite":
            options: dict[str, Any] = {} if "timeout" in given.query else {"timeout": BUSY_S}
        else:
            options = {} if "connect_timeout" in given.query else {"connect_timeout": CONNECT_S}
        try:
            self.engine = create_engine(given.set(drivername=DRIVERS[scheme]), connect_args=options)
        except (SQLAlchemyError, ImportError, ValueError) as error:
            raise self.error(error) from None
        if scheme == "sqlite":
            _write_ahead(self.engine)
        self.insert = INSERTS[self.engine.dialect.name]

    def error(self, error: BaseException) -> InputError:
        """Returns an error as one that says in a line why the database cannot be used."""
        line = next(iter(str(getattr(error, "orig", None) or error).strip().splitlines()), type(error).__name__)
        for secret in self._secret:
            line = line.replace(secret, "***")
        return InputError(f"--storage: {self.shown} cannot be used: {line}")

    def do(self, work: Callable[[Connection], T]) -> T:
        """Returns what work in one transaction returns.

        A database that goes away is waited for, and the work begun again: it may have been done already.
        """
        until = time.monotonic() + self._patience_s
        while True:
            try:
                with self.engine.begin() as connection:
                    return work(connection)
            except InputError:
                raise
            except (OperationalError, InterfaceError) as error:
                # A server that ends, or begins, says so in many ways.
                if time.monotonic() >= until:
                    # What ends the search because of this does not wait again.
                    self._patience_s = 0.0
                    raise self.error(error) from None
            except (SQLAlchemyError, ValueError) as error:
                raise self.error(error) from None
            time.sleep(AGAIN_S)

    def of(self, study: str) -> dict[str, str] | None:
        """Returns what a study is of, None where there is none. Nothing is written."""
        path = self.engine.url.database
        if self.engine.dialect.name == "sqlite" and path and path != ":memory:" and not Path(path).exists():
            return None

        def read(connection: Connection) -> dict[str, str] | None:
            there = inspect(connection).get_table_names()
            if "trial_params" in there:
                raise InputError(
                    f"--storage: {self.shown} has the tables of Optuna's RDBStorage, expected a database without them"
                )
            if STUDIES.name not in there:
                return None
            found = connection.execute(select(STUDIES.c.of).where(STUDIES.c.study == study)).scalar()
            return None if found is None else dict(json.loads(found))

        return self.do(read)

    def begin(self, study: str, of: Mapping[str, str]) -> None:
        """Makes a study of this name unless there is one, with the tables where there are none."""

        def make(connection: Connection) -> None:
            if connection.dialect.name == "postgresql":
                connection.execute(text(f"SELECT pg_advisory_xact_lock({MAKING})"))
            TABLES.create_all(connection)
            new = {"study": study, "of": json.dumps(dict(of)), "entries": 0}
            connection.execute(self.insert(STUDIES).values(new).on_conflict_do_nothing())

        self.do(make)

    def wait_if_away(self) -> None:
        """Has what is done from now on wait for a server that goes away, as one that is restarted does."""
        self._patience_s = PATIENCE_S if self.engine.dialect.name != "sqlite" else 0.0


class Log(BaseJournalBackend):
    """A Log is the journal of one study, from which Optuna's JournalStorage makes its trials.

    `ends` is called in the transaction that adds a trial, with the trial's user attributes: where it raises an error
    the trial is not added.
    """

    def __init__(self, storage: Storage, study: str, ends: Callable[[Connection, dict[str, Any]], None]) -> None:
        self._storage, self._study, self._ends = storage, study, ends

    def read_logs(self, log_number_from: int) -> Iterable[dict[str, Any]]:
        """Returns the entries from this number on."""
        mine = (ENTRIES.c.study == self._study) & (ENTRIES.c.number >= log_number_from)
        asked = select(ENTRIES.c.entry).where(mine).order_by(ENTRIES.c.number)
        found = self._storage.do(lambda connection: connection.execute(asked).scalars().all())
        return [json.loads(zlib.decompress(entry)) for entry in found]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Adds entries, each with the next number. Other workers wait, as the study's row is locked until then."""
        texts = [zlib.compress(json.dumps(one).encode()) for one in logs]

        def append(connection: Connection) -> None:
            for one in logs:
                if "user_attrs" in one:
                    self._ends(connection, one["user_attrs"])
            longer = update(STUDIES).where(STUDIES.c.study == self._study)
            longer = longer.values(entries=STUDIES.c.entries + len(logs))
            last = connection.execute(longer.returning(STUDIES.c.entries)).scalar_one()
            rows = [
                {"study": self._study, "number": number, "entry": entry}
                for number, entry in enumerate(texts, last - len(logs))
            ]
            connection.execute(insert(ENTRIES), rows)

        self._storage.do(append)


def _write_ahead(engine: Engine) -> None:
    """Has SQLite write ahead and not wait for the disk, and begin as a writer, so that no two end in each other's way.

    What was written survives the death of the process, not that of the machine.
    """

    @event.listens_for(engine, "connect")
    def _(connection: Any, record: object) -> None:
        # Else sqlite3 begins by itself, and later.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    @event.listens_for(engine, "begin")
    def _(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
