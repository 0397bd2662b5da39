"""The solver, z3, shows statements about terms that their form does not show.

A statement is encoded with linear arithmetic alone: a product of unknowns is a number of its own, with its bounds, and
a quotient is what its axiom says. So what z3 shows is true; what it cannot show need not be false.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import lru_cache
from itertools import permutations
from math import inf

from tl_attention.codeproof.terms.intervals import Intervals
from tl_attention.codeproof.terms.term import CONSTANT, HOLDS, LEAST, QUOTIENT, SYMBOL, Atom, Term, without

# What z3 may spend on a statement, in its own units, of which a second has a few million: an answer never depends on
# how busy a machine is.
RESOURCES = 2_000_000


class Solver:
    """A Solver asks z3 about statements under the facts of a place, and remembers its answers."""

    def __init__(self, facts: Intervals):
        self.facts = facts
        # By term, numbers of symbols for which z3 says that a statement about the term is false.
        self.counter: dict[Term, dict[str, int]] = {}
        self._answers: dict[tuple[Term, str, tuple[Term, ...]], bool] = {}

    def shows(self, of: Term, statement: str, bounds: Iterable[Term] = ()) -> bool:
        """Says whether z3 shows that a term is 0, or not negative, wherever the facts hold, and these bounds."""
        key = (of, statement, (*self.facts.here, *bounds))
        if key not in self._answers:
            self._answers[key] = self._ask(of, statement, [*bounds])
        return self._answers[key]

    def _ask(self, of: Term, statement: str, bounds: list[Term]) -> bool:
        query = Query(self.facts)
        facts = [f"(>= {query.term(fact)} 0)" for fact in (*self.facts.here, *bounds)]
        value = query.term(of)
        query.relate_quotients()
        if bounds:
            query.relate_products()
        for claim in (*facts, f"(distinct {value} 0)" if statement == "= 0" else f"(< {value} 0)"):
            query.lines.append(f"(assert {claim})")
        answer, model = answer_to("\n".join(query.lines))
        self.facts.shown[f"solver: {answer}"] += 1
        if answer == "sat":
            self.counter[of] = query.numbers(model)
        return answer == "unsat"


# Kernels that are like each other ask the same: a query has no name of a kernel's symbols.
@lru_cache(maxsize=4096)
def answer_to(query: str) -> tuple[str, dict[str, int]]:
    """Returns what z3 says of a query, and a model's numbers; in a context of its own, so no other query changes it."""
    import z3

    # A general solver spends seconds on what this one says at once.
    solver = z3.SimpleSolver(ctx=z3.Context())
    solver.set("rlimit", RESOURCES)
    solver.from_string(query)
    answer, values = solver.check(), {}
    if answer == z3.sat:
        model = solver.model()
        values = {str(name): model[name] for name in model.decls() if name.arity() == 0}
    return str(answer), {name: value.as_long() for name, value in values.items() if z3.is_int_value(value)}


class Query:
    """A Query is the SMT-LIB text that z3 gets before a question: `lines` that declare and bound each unknown."""

    def __init__(self, facts: Intervals):
        self.facts = facts
        self.lines: list[str] = []
        self.names: dict[tuple[Atom, ...], str] = {}
        # How often a monomial stands in what is told of.
        self.factors: dict[tuple[Atom, ...], set[int]] = defaultdict(lambda: {1})

    def term(self, of: Term) -> str:
        """Returns the SMT-LIB text of a term, after lines that define the term's monomials."""
        parts = [_times(factor, self.monomial(monomial)) for monomial, factor in of.parts.items() if monomial]
        for monomial, factor in of.parts.items():
            self.factors[monomial].add(abs(factor))
        parts += [_number(of.parts[CONSTANT])] if CONSTANT in of.parts else []
        return f"(+ {' '.join(parts)})" if len(parts) > 1 else parts[0] if parts else "0"

    def monomial(self, monomial: tuple[Atom, ...]) -> str:
        """Returns the name that a monomial has in the query, after lines that define it."""
        if monomial not in self.names:
            condition = next((atom for atom in monomial if atom.kind == HOLDS), None)
            if condition is not None:
                rest = tuple(atom for atom in monomial if atom is not condition)
                value = self.monomial(rest) if rest else "1"
                self._define(monomial, f"(ite (>= {self.term(condition.of)} 0) {value} 0)")
            elif len(monomial) == 1 and monomial[0].kind == LEAST:
                of = self.term(monomial[0].of)
                self._define(monomial, f"(ite (< {of} 0) {of} 0)")
            elif len(monomial) == 1:
                self._atom(monomial[0])
            else:
                self._product(monomial)
        return self.names[monomial]

    def _define(self, monomial: tuple[Atom, ...], value: str) -> None:
        name = self.names[monomial] = f"m{len(self.names)}"
        self.lines.append(f"(define-fun {name} () Int {value})")

    def _declare(self, monomial: tuple[Atom, ...]) -> str:
        name = self.names[monomial] = f"m{len(self.names)}"
        self.lines.append(f"(declare-const {name} Int)")
        return name

    def _atom(self, atom: Atom) -> None:
        facts, name = self.facts, self._declare((atom,))
        if atom.kind == QUOTIENT:
            for dividend, divisor in atom.quotients:
                of, by, multiple = self.term(dividend), self.term(divisor), self.term(divisor * atom.term)
                axiom = f"(and (<= {multiple} {of}) (<= (+ (- {of} {multiple}) 1) {by}) (=> (>= {of} 0) (<= 0 {name} {of})))"
                # A quotient by what is not above 0 is any number.
                self.lines.append(f"(assert {axiom if divisor.constant else f'(=> (>= {by} 1) {axiom})'})")
            self.lines += [f"(assert {bound})" for bound in _within(name, facts.range_of_atom(atom))]
        elif atom.name in facts.names:
            known = facts.names[atom.name]
            self.lines.append(f"(assert (= {name} {self.term(known.term)}))")
            made = " ".join(f"(>= {self.term(fact)} 0)" for fact in known.made)
            for bound in _within(name, known.range):
                self.lines.append(f"(assert {f'(=> (and {made}) {bound})' if made else bound})")
        else:
            self.lines += [f"(assert {bound})" for bound in _within(name, facts.ranges[atom.name])]

    def _product(self, monomial: tuple[Atom, ...]) -> None:
        # A quotient's axiom may be about this product, too.
        name, factors = self._declare(monomial), [self.monomial((atom,)) for atom in monomial]
        ranges = [self.facts.range_of_atom(atom) for atom in monomial]
        if all(low >= 0 for low, _ in ranges):
            lines = [f"(>= {name} 0)", *(f"(=> (= {factor} 0) (= {name} 0))" for factor in factors)]
            for number, factor in enumerate(factors):
                if all(low >= 1 for other, (low, _) in enumerate(ranges) if other != number):
                    lines.append(f"(>= {name} {factor})")
            self.lines += [f"(assert {one})" for one in lines]

    def relate_quotients(self) -> None:
        """Tells z3 that quotients by one number are in the order of their dividends."""
        quotients = [
            (monomial[0].by.constant, self.term(monomial[0].of), name)
            for monomial, name in [*self.names.items()]
            if len(monomial) == 1 and monomial[0].kind == QUOTIENT and monomial[0].by.constant
        ]
        for number, (by, of, name) in enumerate(quotients):
            for other_by, other, other_name in quotients[number + 1 :]:
                if by == other_by:
                    self.lines.append(f"(assert (=> (<= {of} {other}) (<= {name} {other_name})))")
                    self.lines.append(f"(assert (=> (>= {of} {other}) (>= {name} {other_name})))")

    def relate_products(self) -> None:
        """Tells z3 that products with a common factor >= 0 are in the order of their other factors."""
        for one, other in permutations([monomial for monomial in self.names if len(monomial) > 1], 2):
            shared = tuple((Counter(one) & Counter(other)).elements())
            if not shared or any(self.facts.range_of_atom(atom)[0] < 0 for atom in shared):
                continue
            rests = [without(monomial, shared) for monomial in (one, other)]
            a, b = (self.monomial(rest) if rest else "1" for rest in rests)
            for times in sorted(self.factors[other]):
                products = self.names[one], _times(times, self.names[other])
                for order in ("<=", ">="):
                    self.lines.append(f"(assert (=> ({order} {a} {_times(times, b)}) ({order} {' '.join(products)})))")

    def numbers(self, model: dict[str, int]) -> dict[str, int]:
        """Returns the symbols' numbers of z3's model, within their bounds."""
        values = {}
        for monomial, name in self.names.items():
            atom = monomial[0]
            if len(monomial) == 1 and atom.kind == SYMBOL and atom.name in self.facts.ranges and name in model:
                low, high = self.facts.ranges[atom.name]
                values[atom.name] = int(min(high, max(low, model[name])))
        return values


def _number(value: int) -> str:
    return str(value) if value >= 0 else f"(- {-value})"


def _times(factor: int, name: str) -> str:
    return name if factor == 1 else f"(* {_number(factor)} {name})"


def _within(name: str, bounds: tuple[float, float]) -> list[str]:
    low, high = bounds
    return [
        *([f"(>= {name} {_number(int(low))})"] if low > -inf else []),
        *([f"(<= {name} {_number(int(high))})"] if high < inf else []),
    ]
