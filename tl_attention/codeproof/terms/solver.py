"""The solver, z3, shows statements about terms that their form does not show.

A statement is encoded with linear arithmetic alone: a product of unknowns is a number of its own, with its bounds, and a
quotient is what its axiom says. So what z3 shows is true; what it cannot show need not be false.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from tl_attention.codeproof.terms.term import CONSTANT, HOLDS, LEAST, QUOTIENT, SYMBOL, Atom, Term

if TYPE_CHECKING:
    from tl_attention.codeproof.terms.facts import Facts

# What z3 may spend on a statement, in its own units, of which a second has a few million: an answer never depends on how
# busy a machine is.
RESOURCES = 2_000_000


class Solver:
    """A Solver asks z3 about statements under the facts of a place, and remembers its answers.

    `counter` has numbers of symbols, by term, for which z3 says that a statement about it is false.
    """

    def __init__(self, facts: Facts):
        self.facts = facts
        self.counter: dict[Term, dict[str, int]] = {}
        self._answers: dict[tuple[Term, str, tuple[Term, ...]], bool] = {}

    def shows(self, of: Term, statement: str) -> bool:
        """Says whether z3 shows that a term is 0, or not negative, wherever the facts hold."""
        key = (of, statement, self.facts.here)
        if key not in self._answers:
            self._answers[key] = self._ask(of, statement)
        return self._answers[key]

    def _ask(self, of: Term, statement: str) -> bool:
        import z3

        query = _Query(self.facts, z3)
        value = query.term(of)
        for fact in self.facts.here:
            query.solver.add(query.term(fact) >= 0)
        query.relate_quotients()
        query.solver.add(value != 0 if statement == "= 0" else value < 0)
        found = query.solver.check()
        self.facts.shown[f"solver: {found}"] += 1
        if found == z3.sat:
            self.counter[of] = query.numbers()
        return found == z3.unsat


class _Query:
    """A _Query is one statement in z3's words."""

    def __init__(self, facts: Facts, z3: Any):
        # A general solver spends seconds on what this one says at once.
        self.facts, self.z3, self.solver = facts, z3, z3.SimpleSolver()
        self.solver.set("rlimit", RESOURCES)
        self.found: dict[tuple[Atom, ...], Any] = {}

    def term(self, of: Term) -> Any:
        parts = [factor * self.monomial(monomial) for monomial, factor in of.parts.items() if monomial]
        return self.z3.Sum([self.z3.IntVal(of.parts.get(CONSTANT, 0)), *parts])

    def monomial(self, monomial: tuple[Atom, ...]) -> Any:
        if monomial not in self.found:
            condition = next((atom for atom in monomial if atom.kind == HOLDS), None)
            if condition is not None:
                rest = tuple(atom for atom in monomial if atom is not condition)
                one = self.monomial(rest) if rest else self.z3.IntVal(1)
                self.found[monomial] = self.z3.If(self.term(condition.of) >= 0, one, self.z3.IntVal(0))
            elif len(monomial) == 1:
                self._atom(monomial[0])
            else:
                self._product(monomial)
        return self.found[monomial]

    def _atom(self, atom: Atom) -> None:
        z3, facts = self.z3, self.facts
        if atom.kind == LEAST:
            of = self.term(atom.of)
            self.found[(atom,)] = z3.If(of < 0, of, z3.IntVal(0))
            return
        value = self.found[(atom,)] = z3.Int(f"a{atom.number}")
        if atom.kind == QUOTIENT:
            of, by = self.term(atom.of), self.term(atom.by)
            multiple = self.term(atom.by * atom.term)
            axiom = z3.And(multiple <= of, of - multiple <= by - 1)
            # A quotient by what is not above 0 is any number.
            self.solver.add(axiom if atom.by.constant else z3.Implies(by >= 1, axiom))
        elif atom.name in facts.names:
            name = facts.names[atom.name]
            self.solver.add(value == self.term(name.term))
            made = z3.And([self.term(fact) >= 0 for fact in name.made])
            self.solver.add(z3.Implies(made, z3.And(self._within(value, name.range))))
        else:
            self.solver.add(*self._within(value, facts.ranges[atom.name]))

    def _product(self, monomial: tuple[Atom, ...]) -> None:
        z3 = self.z3
        value = self.found[monomial] = z3.Int("m" + "_".join(str(atom.number) for atom in monomial))
        ranges = [self.facts.range_of_atom(atom) if atom.kind != QUOTIENT else (-inf, inf) for atom in monomial]
        factors = [self.monomial((atom,)) for atom in monomial]
        if all(low >= 0 for low, _ in ranges):
            self.solver.add(value >= 0, *(z3.Implies(factor == 0, value == 0) for factor in factors))
            if all(low >= 1 for low, _ in ranges):
                self.solver.add(*(value >= factor for factor in factors))
            elif all(low >= 1 for low, _ in ranges[1:]):
                self.solver.add(value >= factors[0])

    def _within(self, value: Any, bounds: tuple[float, float]) -> list[Any]:
        low, high = bounds
        return [*([value >= int(low)] if low > -inf else []), *([value <= int(high)] if high < inf else [])]

    def relate_quotients(self) -> None:
        """Adds that of two quotients by one number that of the greater term is not the smaller one."""
        quotients = [
            (atom.by.constant, self.term(atom.of), value)
            for (atom, *more), value in list(self.found.items())
            if not more and atom.kind == QUOTIENT and atom.by.constant
        ]
        for number, (by, of, value) in enumerate(quotients):
            for other_by, other, other_value in quotients[number + 1 :]:
                if by == other_by:
                    implies = self.z3.Implies
                    self.solver.add(
                        implies(of <= other, value <= other_value), implies(of >= other, value >= other_value)
                    )

    def numbers(self) -> dict[str, int]:
        """Returns the symbols' numbers of z3's model, within their bounds."""
        model, found = self.solver.model(), {}
        for (atom, *more), value in self.found.items():
            if not more and atom.kind == SYMBOL and atom.name in self.facts.ranges:
                low, high = self.facts.ranges[atom.name]
                found[atom.name] = int(min(high, max(low, model.eval(value, model_completion=True).as_long())))
        return found
