"""Calls on fragments: ldmatrix, mma.sync, and shuffles among the four lanes that have a row."""

from __future__ import annotations

import re
from typing import Any

from tl_attention.proof.generated.copies import shared_address
from tl_attention.proof.generated.declared import Declared
from tl_attention.proof.generated.expression import Expression, arguments
from tl_attention.proof.generated.nodes import Made
from tl_attention.proof.generated.products import DTYPES
from tl_attention.proof.generated.run import Run
from tl_attention.proof.generated.text import Call
from tl_attention.proof.generated.threads import Class

# (&(K_local[(j * 8)]))
IN_REGISTERS = re.compile(r"\(&\((\w+)\[(.+)\]\)\)$")
# reinterpret_cast<const unsigned*>(K_local + (j_1 * 4))
OPERAND = re.compile(r"reinterpret_cast<(float|const unsigned)\*>\((\w+) \+ (.+)\)$")
# Rows, columns and depth, that A is not transposed, and B is.
OF_AN_MMA = (16, 8, 16, "false", "true")


def _fragment(match: re.Match[str], declared: Declared) -> Made:
    count, transposed, given = int(match[1]), bool(match[2]), arguments(match[3])
    to = IN_REGISTERS.match(given[1]) if len(given) == 2 else None
    if not to:
        raise SyntaxError(f"an ldmatrix of a form that is not known: {match.string[:80]!r}")
    (buffer, element), registers, place = shared_address(given[0], declared), to[1], declared.expression(to[2])
    declared.register(registers)

    def act(run: Run, threads: Class, line: int) -> None:
        run.see(
            threads, line, "fragment", buffer, element=run.value(element, threads), count=count, transposed=transposed,
            registers=registers, at=run.value(place, threads),
        )  # fmt: skip

    return Made(act)


def _operand(text: str, kind: str, declared: Declared) -> tuple[str, Expression]:
    match = OPERAND.match(text)
    if not match or match[1] != kind:
        raise SyntaxError(f"{text[:80]!r} is no operand of a product")
    return declared.register(match[2]), declared.expression(match[3])


def _multiply(match: re.Match[str], declared: Declared) -> Made:
    types, sizes, given = match[1].split(", "), match[2].split(", "), arguments(match[3])
    if len(given) != 3:
        raise SyntaxError(f"a product of a form that is not known: {match.string[:80]!r}")
    form = (*(DTYPES[name.removeprefix("tl::DataType::")] for name in types), *map(int, sizes[:3]), *sizes[3:])
    operands = [_operand(text, kind, declared) for text, kind in zip(given, ("float", *["const unsigned"] * 2))]

    def act(run: Run, threads: Class, line: int) -> None:
        values: dict[str, Any] = {}
        for role, (name, place) in zip("dab", operands):
            values |= {role: name, f"{role}_at": run.value(place, threads)}
        run.see(threads, line, "multiply", form=form, **values)

    return Made(act)


def _exchange(match: re.Match[str], declared: Declared) -> Made | None:
    """A shuffle, which all lanes of a warp must run."""
    if match[1] not in declared.registers:
        return None
    return Made(lambda run, threads, line: run.see(threads, line, "exchange"))


OWN = r"(\w+)\[(\w+)\]"
OTHER = r"__shfl_xor_sync\(\(uint\)4294967295, \1\[\2\], [12], 32\)"
TYPE = rf"tl::DataType::(?:{'|'.join(DTYPES)})"
FRAGMENT_CALLS = (
    # tl::ptx_ldmatrix_x4((&(((half_t*)K_shared)[...])), (&(K_local[(j * 8)])));    tl::ptx_ldmatrix_x2_trans(...
    Call("fragment", re.compile(r"tl::ptx_ldmatrix_x([24])(_trans)?\((.+)\);$"), _fragment),
    # tl::mma_sync<tl::DataType::kFloat16, tl::DataType::kFloat16, tl::DataType::kFloat32, 16, 8, 16, false, true>(
    #     reinterpret_cast<float*>(acc_s + ...), reinterpret_cast<const unsigned*>(Q_local + ...), ...);
    Call(
        "product",
        re.compile(rf"tl::mma_sync<({TYPE}, {TYPE}, {TYPE}), (\d+, \d+, \d+, \w+, \w+)>\((.+)\);$"),
        _multiply,
    ),
    # scores_max[r] = max(scores_max[r], __shfl_xor_sync((uint)4294967295, scores_max[r], 1, 32));
    Call("exchange, numbers: arithmetic", re.compile(rf"{OWN} = max\(\1\[\2\], {OTHER}\);$"), _exchange),
    # denominator[r] = (denominator[r] + __shfl_xor_sync((uint)4294967295, denominator[r], 1, 32));
    Call("exchange, numbers: arithmetic", re.compile(rf"{OWN} = \(\1\[\2\] \+ {OTHER}\);$"), _exchange),
)
