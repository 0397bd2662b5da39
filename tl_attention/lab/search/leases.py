"""A worker holds what it works on by a lease: what a worker that is gone has held, another one takes over.

A worker has a number in its study, and raises a count every BEAT_S: its beat. A lease lapses when another worker has
beaten LEASE times and its holder not once. So no clock is compared with another one's, a clock that jumps does nothing,
and while the database is away nobody's lease lapses. A worker that was only late beats again, and holds what nobody has
taken over.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, and_, func, insert, select, update

from tl_attention.lab.search.storage import CLAIMS, STUDIES, WORKERS, Storage

BEAT_S, LEASE = 2.0, 15
# States of a worker. Whoever is not ON holds nothing.
ON, LEFT, LOST = "on", "left", "lost"


class Taken(Exception):
    """This error says that a worker does not hold, any more, what it would end."""


class Leases:
    """A Leases is one worker of a study: it joins, beats, claims and leaves."""

    def __init__(self, storage: Storage, study: str, name: str) -> None:
        self._storage, self._study = storage, study
        self._token, self._name = secrets.token_hex(16), name
        self.number = storage.do(self._join)
        # The beat of each other worker, and how often it was seen unchanged.
        self._seen: dict[int, tuple[int, int]] = {}
        # Some of what nobody holds any more: (its key, its work).
        self.orphans: list[tuple[str, str]] = []
        self.beat({})

    def beat(self, told: Mapping[str, Any]) -> None:
        """Says that this worker lives and what it has done, and looks after the others."""
        self._beaten_at = time.monotonic()
        mine = update(WORKERS).where(self._is(self.number))
        alive = mine.values(beat=WORKERS.c.beat + 1, state=ON, told=json.dumps(told))
        left = select(CLAIMS.c.key, CLAIMS.c.work).join(WORKERS, _HOLDER).where(WORKERS.c.state != ON)
        open_ = left.where(CLAIMS.c.study == self._study, ~CLAIMS.c.ended, CLAIMS.c.work.is_not(None))

        def beaten(connection: Connection) -> None:
            connection.execute(alive)
            self._watch(connection)
            # The next beat finds more.
            found = connection.execute(open_.limit(4))
            self.orphans = [(key, work) for key, work in found]

        self._storage.do(beaten)

    @property
    def is_due(self) -> bool:
        """Says whether this worker should beat."""
        return time.monotonic() - self._beaten_at >= BEAT_S

    def claim(self, key: str, work: str | None = None) -> bool:
        """Says whether this worker holds a key now: nobody had it, or who had it is gone and had not ended it."""

        def claimed(connection: Connection) -> bool:
            row = {"study": self._study, "key": key, "worker": self.number, "work": work, "ended": False}
            connection.execute(self._storage.insert(CLAIMS).values(row).on_conflict_do_nothing())
            this = (CLAIMS.c.study == self._study) & (CLAIMS.c.key == key)
            holder = select(CLAIMS.c.worker, CLAIMS.c.ended, WORKERS.c.state).join(WORKERS, _HOLDER)
            worker, ended, state = connection.execute(holder.where(this)).one()
            if ended or worker == self.number or state == ON:
                return worker == self.number and not ended
            # Of two who see that it is gone one is first.
            free = this & (CLAIMS.c.worker == worker) & ~CLAIMS.c.ended
            return connection.execute(update(CLAIMS).where(free).values(worker=self.number)).rowcount == 1

        return self._storage.do(claimed)

    def end(self, connection: Connection, keys: Sequence[str], also: str) -> None:
        """Ends claims that this worker holds for ever, and one more that it need not hold.

        Raises Taken where another one has taken them over or ended them, or where this was done before.
        """
        if keys:
            mine = (CLAIMS.c.study == self._study) & CLAIMS.c.key.in_(keys) & (CLAIMS.c.worker == self.number)
            ended = update(CLAIMS).where(mine, ~CLAIMS.c.ended).values(ended=True, work=None)
            if connection.execute(ended).rowcount != len(keys):
                raise Taken
        if also not in keys:
            row = {"study": self._study, "key": also, "worker": self.number, "ended": True}
            new = self._storage.insert(CLAIMS).values(row).on_conflict_do_nothing().returning(CLAIMS.c.key)
            if connection.execute(new).first() is None and not keys:
                raise Taken

    def leave(self, told: Mapping[str, Any]) -> bool:
        """Gives up all that this worker holds, and says whether no other one is on."""

        def left(connection: Connection) -> bool:
            connection.execute(self._locked)
            gone = update(WORKERS).where(self._is(self.number))
            connection.execute(gone.values(state=LEFT, told=json.dumps(told)))
            return not self._watch(connection)

        return self._storage.do(left)

    def outlasts(self) -> bool:
        """Says whether all others that were on when this worker left are lost, and this worker is who has seen it."""

        def watched(connection: Connection) -> tuple[int, list[int]]:
            connection.execute(self._locked)
            return len(self._on(connection)), self._watch(connection)

        beats = {worker: beat for worker, (beat, _) in self._seen.items()}
        while True:
            time.sleep(BEAT_S)
            before, others = self._storage.do(watched)
            if not others:
                return before > 0
            if any(self._seen[worker][0] != beats.get(worker) for worker in others):
                return False

    def _join(self, connection: Connection) -> int:
        connection.execute(self._locked)
        # It may have joined already, when the database went away.
        of_study = WORKERS.c.study == self._study
        found = connection.execute(select(WORKERS.c.worker).where(of_study, WORKERS.c.token == self._token)).scalar()
        if found is not None:
            return int(found)
        number = connection.execute(select(func.count()).select_from(WORKERS).where(of_study)).scalar_one()
        row = {"study": self._study, "worker": number, "token": self._token, "name": self._name}
        connection.execute(insert(WORKERS).values(**row, beat=0, state=ON, lapses=0, told="{}"))
        return int(number)

    def _watch(self, connection: Connection) -> list[int]:
        """Counts what others have beaten, says of those that are gone that they are lost, and returns who is on."""
        others = []
        for worker, beat in self._on(connection):
            before, unchanged = self._seen.get(worker, (None, 0))
            unchanged = unchanged + 1 if beat == before else 0
            self._seen[worker] = beat, unchanged
            silent = update(WORKERS).where(self._is(worker), WORKERS.c.beat == beat, WORKERS.c.state == ON)
            lost = silent.values(state=LOST, lapses=WORKERS.c.lapses + 1)
            if unchanged < LEASE or not connection.execute(lost).rowcount:
                others.append(worker)
        return others

    def _on(self, connection: Connection) -> list[tuple[int, int]]:
        """Returns the numbers and beats of other workers that are on."""
        others = (WORKERS.c.study == self._study) & (WORKERS.c.state == ON) & (WORKERS.c.worker != self.number)
        return [tuple(row) for row in connection.execute(select(WORKERS.c.worker, WORKERS.c.beat).where(others))]

    @property
    def _locked(self) -> Any:
        return update(STUDIES).where(STUDIES.c.study == self._study).values(entries=STUDIES.c.entries)

    def _is(self, worker: int) -> Any:
        return (WORKERS.c.study == self._study) & (WORKERS.c.worker == worker)


_HOLDER = and_(WORKERS.c.study == CLAIMS.c.study, WORKERS.c.worker == CLAIMS.c.worker)
