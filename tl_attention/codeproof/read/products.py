"""This module reads the calls that multiply, and the calls that bring factors into registers.

These are wgmma's descriptors, instructions, groups and waits, and the fences of their registers; ldmatrix and mma.sync;
and shuffles among the four lanes that have a row.
"""

from __future__ import annotations

import re
from typing import Any

from tl_attention.codeproof.read.copies import shared_address
from tl_attention.codeproof.read.declarations import SCALARS, Declarations
from tl_attention.codeproof.read.expression import Expression, arguments
from tl_attention.codeproof.read.nodes import Effect
from tl_attention.codeproof.read.text import Form
from tl_attention.codeproof.run.run import Run, no_effect, numbered_call, recorder
from tl_attention.codeproof.run.threads import ThreadClass
from tl_attention.problem.shape import DTYPE_BYTES
from tl_attention.program.events import EXPONENTIALS

# (&(((half_t*)K_shared)[0]))    ((void*)((char*)(&(((half_t*)K_shared)[0])) + 32768))
MATRIX = re.compile(
    r"(?:\(\(void\*\)\(\(char\*\))?\(&\(\(\((?:half_t|bfloat16_t)\*\)(\w+)_shared\)\[(.+?)\]\)\)(?: \+ (.+)\)\))?$"
)
# uint64_t(desc_b_3 + ((ki_3 * 2048) >> 4))
DESCRIPTOR = re.compile(r"uint64_t\((desc_\w+) \+ (.+)\)$")
# reinterpret_cast<const uint32_t*>(acc_s_cast + (ki_4 * 8))
# ((uint32_t*)(acc_s + 0))
REGISTERS = re.compile(r"(?:reinterpret_cast<(?:const )?uint32_t\*>|\(\(uint32_t\*\))\((\w+) \+ (.+)\)$")
# (&(K_local[(j * 8)]))
IN_REGISTERS = re.compile(r"\(&\((\w+)\[(.+)\]\)\)$")
# reinterpret_cast<const unsigned*>(K_local + (j_1 * 4))
MMA_OPERAND = re.compile(r"reinterpret_cast<(float|const unsigned)\*>\((\w+) \+ (.+)\)$")
# The rows, columns and depth of an mma.sync; A is not transposed, and B is.
OF_AN_MMA = (16, 8, 16, "false", "true")
DTYPES = {"kFloat16": "float16", "kBFloat16": "bfloat16", "kFloat32": "float32"}


def _initialise(match: re.Match[str], declared: Declarations) -> Effect:
    layout, (name, address) = tuple(map(int, match[1].split(", "))), arguments(match[2])
    matrix = MATRIX.match(address)
    if not matrix:
        raise SyntaxError(f"{address[:80]!r} is no matrix in shared memory")
    buffer = declared.buffer(matrix[1])
    element, more = declared.expression(matrix[2]), declared.expression(matrix[3] or "0")

    def act(run: Run, threads: ThreadClass, line: int) -> None:
        threads.names[name] = DTYPE_BYTES * run.value(element, threads) + run.value(more, threads)
        threads.names[f"{name} of"] = (buffer, layout)

    return Effect(act)


def _offset(match: re.Match[str], declared: Declarations) -> Effect:
    name, more = match[1], declared.expression(match[2])

    def act(run: Run, threads: ThreadClass, line: int) -> None:
        threads.names[name] = threads.names[name] + run.value(more, threads)

    return Effect(act)


def _operand(text: str, declared: Declarations) -> tuple[bool, str, Expression]:
    """Parses a wgmma's operand into (is it a descriptor, its name, an offset); raises SyntaxError for another text."""
    # The offset counts units of 16 bytes for a descriptor, elements for registers.
    matrix, registers = DESCRIPTOR.match(text), REGISTERS.match(text.removesuffix(")") if text[0] == "(" else text)
    if matrix:
        return True, matrix[1], declared.expression(matrix[2])
    if registers:
        return False, declared.register(registers[1]), declared.expression(registers[2])
    raise SyntaxError(f"{text[:80]!r} is no operand of a product")


def _wgmma(match: re.Match[str], declared: Declarations) -> Effect:
    kind, given = match[1], arguments(match[3])
    template = [part.removeprefix("tl::DataType::") for part in match[2].split(", ")]
    if len(given) != 4 or len(template) not in (10, 9):
        raise SyntaxError(f"a product of a form that is not known: {match.string[:80]!r}")
    types, (rows, columns, depth), flags = template[:3], map(int, template[3:6]), template[6:]
    operands = [_operand(text, declared) for text in given[:3]]
    if [shared for shared, *_ in operands] != [kind == "ss", True, False]:
        raise SyntaxError(f"operands of wgmma_{kind} that are not known: {match.string[:80]!r}")
    keeps = declared.expression(given[3])
    form = (*(DTYPES[name] for name in types), rows, columns, depth, *flags)

    def act(run: Run, threads: ThreadClass, line: int) -> None:
        values: dict[str, Any] = {}
        for role, (shared, name, more) in zip("abd", operands):
            at = run.value(more, threads)
            source = threads.names[f"{name} of"] if shared else name
            values |= {role: source, f"{role}_at": threads.names[name] + 16 * at if shared else at}
        run.record(threads, line, "wgmma", form=form, keeps=run.value(keeps, threads), **values)

    return Effect(act)


def _fence(match: re.Match[str], declared: Declarations) -> Effect | None:
    width, name, offset, count = match[1], declared.register(match[2]), int(match[3]), int(match[4])
    # TileLang counts the registers of a whole tile where a thread has fewer.
    if offset or 4 * count < declared.registers[name]:
        raise SyntaxError(f"a fence of {count} registers of {name} from {offset} on, not of all of them")
    # Two elements of 2 bytes are one register.
    if (width == "float") == name.endswith(("_cast", "_local")):
        raise SyntaxError(f"a fence of {name} as {width}")
    return recorder("operand fence", name)


def _hold(match: re.Match[str], declared: Declarations) -> Effect:
    kind, first, end, name = match.groups()
    declared.register(name)
    return recorder(kind.replace("_", " "), EXPONENTIALS, index=int(first), value=int(end or 0))


def _fragment(match: re.Match[str], declared: Declarations) -> Effect:
    count, transposed, given = int(match[1]), bool(match[2]), arguments(match[3])
    to = IN_REGISTERS.match(given[1]) if len(given) == 2 else None
    if not to:
        raise SyntaxError(f"an ldmatrix of a form that is not known: {match.string[:80]!r}")
    (buffer, element), registers, place = shared_address(given[0], declared), to[1], declared.expression(to[2])
    declared.register(registers)
    return recorder(
        "fragment", buffer, element=element, count=count, transposed=transposed, registers=registers, at=place
    )  # fmt: skip


def _in_registers(text: str, kind: str, declared: Declarations) -> tuple[str, Expression]:
    match = MMA_OPERAND.match(text)
    if not match or match[1] != kind:
        raise SyntaxError(f"{text[:80]!r} is no operand of a product")
    return declared.register(match[2]), declared.expression(match[3])


def _multiply(match: re.Match[str], declared: Declarations) -> Effect:
    types, sizes, given = match[1].split(", "), match[2].split(", "), arguments(match[3])
    if len(given) != 3:
        raise SyntaxError(f"a product of a form that is not known: {match.string[:80]!r}")
    form = (*(DTYPES[name.removeprefix("tl::DataType::")] for name in types), *map(int, sizes[:3]), *sizes[3:])
    operands = [_in_registers(text, kind, declared) for text, kind in zip(given, ("float", *["const unsigned"] * 2))]
    values: dict[str, Any] = {}
    for role, (name, place) in zip("dab", operands):
        values |= {role: name, f"{role}_at": place}
    return recorder("multiply", form=form, **values)


def _exchange(match: re.Match[str], declared: Declarations) -> Effect | None:
    """Returns the Effect of a shuffle among the lanes of a whole warp, None if its variable is no register."""
    if match[1] not in declared.registers:
        return None
    return recorder("exchange")


OWN = r"(\w+)\[(\w+)\]"
OTHER = r"__shfl_xor_sync\(\(uint\)4294967295, \1\[\2\], [12], 32\)"
TYPE = rf"tl::DataType::(?:{'|'.join(DTYPES)})"
SCALE = rf"\((?:{'|'.join(SCALARS)}) \* 0x1\.71547652b82fep\+0f/\*1\.442695e\+00\*/\)"
PRODUCT_CALLS = (
    # tl::GmmaDescriptor desc_b;
    Form("descriptor", re.compile(r"tl::GmmaDescriptor desc_\w+;$"), no_effect),
    # tl::initialize_wgmma_descriptor<1, 1, 64>(desc_b, (&(((half_t*)K_shared)[0])));
    Form("descriptor", re.compile(r"tl::initialize_wgmma_descriptor<([\d, ]+)>\((.+)\);$"), _initialise),
    # tl::increase_descriptor_offset<int>(desc_b, ((base_3 & 1) * 45056));
    Form("descriptor", re.compile(r"tl::increase_descriptor_offset<int>\((\w+), (.+)\);$"), _offset),
    numbered_call("arrive wgmma")(r"tl::warpgroup_arrive\(\);$"),
    # tl::wgmma_ss<tl::DataType::kFloat16, ..., 64, 128, 16, false, false, 1, 1>(uint64_t(desc_a + ...), ...);
    Form("product", re.compile(r"tl::wgmma_(ss|rs)<(.+?)>\((.+)\);$"), _wgmma),
    numbered_call("commit wgmma")(r"tl::warpgroup_commit_batch\(\);$"),
    numbered_call("products wait")(r"tl::(?:warpgroup_wait|wait_wgmma)<(\d+)>\(\);$"),
    # tl::warpgroup_fence_operand(reinterpret_cast<float*>(acc_s + 0), 64);
    Form(
        "operand fence",
        re.compile(r"tl::warpgroup_fence_operand\(reinterpret_cast<(float|uint32_t)\*>\((\w+) \+ (\d+)\), (\d+)\);$"),
        _fence,
    ),
    # tl_attention_hold<0, 40>(acc_s, (softmax_scale * 0x1.71547652b82fep+0f/*1.442695e+00*/));
    Form("hold", re.compile(rf"tl_attention_(hold)<(\d+), (\d+)>\((\w+), {SCALE}\);$"), _hold),
    Form("hold", re.compile(rf"tl_attention_(hold_last)<(\d+)()>\((\w+), {SCALE}\);$"), _hold),
    numbered_call("resume")(rf"tl_attention_resume\(scores_max, {SCALE}\);$"),
    # tl::ptx_ldmatrix_x4((&(((half_t*)K_shared)[...])), (&(K_local[(j * 8)])));    tl::ptx_ldmatrix_x2_trans(...
    Form("fragment", re.compile(r"tl::ptx_ldmatrix_x([24])(_trans)?\((.+)\);$"), _fragment),
    # tl::mma_sync<tl::DataType::kFloat16, tl::DataType::kFloat16, tl::DataType::kFloat32, 16, 8, 16, false, true>(
    #     reinterpret_cast<float*>(acc_s + ...), reinterpret_cast<const unsigned*>(Q_local + ...), ...);
    Form(
        "product",
        re.compile(rf"tl::mma_sync<({TYPE}, {TYPE}, {TYPE}), (\d+, \d+, \d+, \w+, \w+)>\((.+)\);$"),
        _multiply,
    ),
    # scores_max[r] = max(scores_max[r], __shfl_xor_sync((uint)4294967295, scores_max[r], 1, 32));
    Form("exchange, numbers: arithmetic", re.compile(rf"{OWN} = max\(\1\[\2\], {OTHER}\);$"), _exchange),
    # denominator[r] = (denominator[r] + __shfl_xor_sync((uint)4294967295, denominator[r], 1, 32));
    Form("exchange, numbers: arithmetic", re.compile(rf"{OWN} = \(\1\[\2\] \+ {OTHER}\);$"), _exchange),
)
