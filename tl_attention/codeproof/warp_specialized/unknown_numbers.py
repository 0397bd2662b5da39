"""Numbers that roles receive of tiles, from a counter or from packed sequences' list, are unknown to the proof."""

from __future__ import annotations

from typing import Any

from tl_attention.codeproof.run.threads import ThreadClass, Value
from tl_attention.codeproof.terms.choices import equal
from tl_attention.codeproof.terms.run import TermRun
from tl_attention.codeproof.terms.term import Refused, Term, term
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.codeproof.warp_specialized.unknowns import UnknownTiles
from tl_attention.problem.bounds import LARGEST, ROOM
from tl_attention.problem.packed import TOLD_WORDS
from tl_attention.program.events import TILE


class UnknownNumbers:
    """UnknownNumbers gives symbols for what a role receives of tiles: numbers from a counter, and words of entries."""

    run: TermRun
    handed: Value = 0

    def __init__(self, proof: UnknownTiles):
        self.proof, self.exists_if = proof, proof.exists_if
        self.before = True
        # What is done with the counters: the threads that count blocks, and that reset, each with the facts there.
        self.counted: list[tuple[int, tuple[Term, ...]]] = []
        self.resets: list[tuple[int, int, int, tuple[Term, ...]]] = []
        self.next_number: Value = proof.number + proof.workers

    def started(self, name: str, before: Value) -> Term | None:
        """Returns the symbol, at any tile's start, of a variable that is carried from tile to tile; None for others."""
        self.before = False
        for word in range(TOLD_WORDS):
            if isinstance(before, Term) and before.same(self.proof.word("first", word)):
                return self.proof.word("told", word)
        starts = {
            "turn": self.proof.turn,
            "base": self.proof.base,
            "tile": self.proof.number,
            "number": self.proof.number,
        }
        return next((start for prefix, start in starts.items() if name.startswith(prefix)), None)

    def receive(self, threads: ThreadClass) -> None:
        pass

    def page_shift(self, key: Value, names: object) -> Value:
        return self.proof.page_shift(key)

    def wait_for_list(self, threads: ThreadClass) -> None:
        pass

    def leaders(self, threads: ThreadClass, *values: Value) -> tuple[ThreadClass, tuple[Value, ...]]:
        return threads, values

    def add(self, threads: ThreadClass, counter: str, index: int, step: int) -> Value:
        if step != 1:
            raise Unsafe(f"{counter}[{index}] grows by {step}, expected 1")
        before = self.proof.facts.symbol(f"{counter}[{index}]", 0, LARGEST - ROOM)
        if index == 1:
            self.counted.append((len(threads.threads), self.proof.facts.here))
        if index == 0:
            self.next_number = before + self.proof.workers
        return before

    def set(self, threads: ThreadClass, counter: str, index: int, value: int) -> None:
        self.resets.append((index, value, len(threads.threads), self.proof.facts.here))

    def check_counters(self, blocks: int) -> None:
        """Raises Unsafe unless a thread of each block counts it behind its tiles, and the last resets both counters."""
        simpler = self.proof.facts.simpler
        last = simpler(equal(self.proof.facts.symbol("TileCounter[1]", 0, LARGEST - ROOM), blocks - 1) - 1)
        by_last = [(*reset, last in map(simpler, facts)) for *reset, facts in self.resets]
        if self.counted != [(1, ())] or by_last != [(0, 0, 1, True), (1, 0, 1, True)]:
            raise Unsafe(f"the counters of tiles are reset by {by_last}, expected the last of {blocks} blocks")
        with self.proof.facts.assuming(last):
            for fact in (fact for *_, facts in self.resets for fact in facts):
                self.proof.facts.show("the last block does not always reset the counters of tiles", fact)

    def tile_list(self, threads: ThreadClass) -> UnknownNumbers:
        return self

    def count(self, blocks: Any) -> Term:
        return self.proof.row_tiles

    def few(self, blocks: Any) -> Value:
        return self.proof.few

    def turns_from(self, blocks: Any) -> Value:
        return self.proof.turns_from

    def words(self, blocks: Any, entry: Value) -> list[Value]:
        """Notes which entry of the list is handed over, and returns an empty list."""
        self.handed = entry
        return []

    def put(self, threads: ThreadClass, name: str, word: Value, values: Value) -> None:
        if self.proof.roles.packed and isinstance(values, Term):
            self.run.seen[-1].values |= {"entry": self.handed, "head": values}
        elif not self.proof.roles.packed:
            self.proof.facts.show_equal("the number that is told of the next tile", values, self.next_number)

    def get(self, threads: ThreadClass, name: str, word: Value) -> Value:
        """Returns the symbol of a word of the tile that a slot has, which is this tile, the first or the next."""
        slot, roles = self.run.seen[-1].values["index"], self.proof.roles
        if not roles.packed:
            return self.proof.facts.symbol("next number", 0, LARGEST)
        slots = roles.slots(TILE)
        turns = {"first": term(0)} if self.before else {"told": self.proof.turn, "next": self.proof.turn + 1}
        for which, turn in turns.items():
            if self.proof.facts.is_zero(term(slot) - turn % slots):
                return self.proof.word(which, int(word))
        raise Refused(f"what is told of a tile is read in slot {slot}")
