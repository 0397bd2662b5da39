"""Calls that move tiles: by TMA, by cp.async, and by the threads themselves; and the counter of tiles."""

from __future__ import annotations

import re

from tl_attention.problem.shape import DTYPE_BYTES
from tl_attention.proof.generated.barriers import plain
from tl_attention.proof.generated.declared import Declared
from tl_attention.proof.generated.expression import Expression, arguments
from tl_attention.proof.generated.nodes import Made
from tl_attention.proof.generated.run import Run
from tl_attention.proof.generated.text import Call
from tl_attention.proof.generated.threads import Class

# (&(((half_t*)K_shared)[((i * 8192) + 16384)]))
IN_SHARED = re.compile(r"\(&\(\(\((half_t|bfloat16_t)\*\)(\w+)_shared\)\[(.+)\]\)\)$")
# (&(K[(((int64_t)i) * (int64_t)2048)]))
IN_GLOBAL = re.compile(r"\(&\((\w+)\[(.+)\]\)\)$")
BARRIER = re.compile(r"(\w+)\[(.+)\]$")
MASK = re.compile(r"\(uint16_t\)\((\d+)\)$")
SHARED = r"\(\(\((?:half_t|bfloat16_t)\*\)(\w+)_shared\) \+ (.+?)\)"
# A thread's copy of up to 16 bytes, of 2-byte elements.
ELEMENTS = {"uint1": 2, "uint2": 4, "uint4": 8}
# acc_o    (&(acc_o[64]))
REGISTERS = re.compile(r"(?:(\w+)|\(&\((\w+)\[(\d+)\]\)\))$")


def shared_address(text: str, declared: Declared) -> tuple[str, Expression]:
    """(buffer, element) of an address in shared memory."""
    match = IN_SHARED.match(text)
    if not match:
        raise SyntaxError(f"{text[:80]!r} is no address in shared memory")
    return declared.buffer(match[2]), declared.expression(match[3])


def _tma_load(match: re.Match[str], declared: Declared) -> Made:
    descriptor, barrier, address, *rest = arguments(match[2])
    full, (buffer, element) = BARRIER.match(barrier), shared_address(address, declared)
    to = MASK.match(rest.pop(0)) if match[1] else None
    if not full or bool(match[1]) != bool(to) or len(rest) != 4:
        raise SyntaxError(f"a load of a form that is not known: {match.string[:80]!r}")
    name, at = declared.barrier(full[1]), declared.expression(full[2])
    place = [declared.expression(text) for text in rest]

    def act(run: Run, threads: Class, line: int) -> None:
        column, row, head, batch = (run.value(part, threads) for part in place)
        blocks = int(to[1]) if to else None
        run.see(
            threads, line, "tma load", buffer, index=run.value(at, threads), element=run.value(element, threads),
            barrier=name, descriptor=descriptor, column=column, row=row, head=head, batch=batch, blocks=blocks,
        )  # fmt: skip

    return Made(act)


def _tma_store(match: re.Match[str], declared: Declared) -> Made:
    descriptor, address, *rest = arguments(match[1])
    (buffer, element), place = shared_address(address, declared), [declared.expression(text) for text in rest]

    def act(run: Run, threads: Class, line: int) -> None:
        column, row, head, batch = (run.value(part, threads) for part in place)
        run.see(
            threads, line, "tma store", buffer, element=run.value(element, threads), descriptor=descriptor,
            column=column, row=row, head=head, batch=batch,
        )  # fmt: skip

    return Made(act)


def _cp_async(match: re.Match[str], declared: Declared) -> Made:
    given = arguments(match[3])
    (buffer, element), source = shared_address(given[0], declared), IN_GLOBAL.match(given[1])
    if not source or len(given) != (3 if match[1] else 2):
        raise SyntaxError(f"a copy of a form that is not known: {match.string[:80]!r}")
    tensor, origin = source[1], declared.expression(source[2])
    condition = declared.expression(given[2] if match[1] else "1")
    elements = int(match[2]) // DTYPE_BYTES

    def act(run: Run, threads: Class, line: int) -> None:
        run.see(
            threads, line, "copy", buffer, element=run.value(element, threads), tensor=tensor,
            source=run.value(origin, threads), inside=run.value(condition, threads), elements=elements,
        )  # fmt: skip

    return Made(act)


def _fetch(match: re.Match[str], declared: Declared) -> Made | None:
    """Of global memory into a variable, which from then on says where it is from; -1 is zeros."""
    variable, words, tensor, place = match.groups()
    if variable not in declared.registers or tensor in declared.registers:
        return None
    source = declared.expression(place)

    def act(run: Run, threads: Class, line: int) -> None:
        threads.names[variable] = run.value(source, threads)
        run.fetched[variable] = (tensor, ELEMENTS[words])

    return Made(act, frozenset({variable}))


def _zeros(match: re.Match[str], declared: Declared) -> Made | None:
    variable = match[1]

    def act(run: Run, threads: Class, line: int) -> None:
        threads.names[variable] = -1

    return Made(act, frozenset({variable}))


def _write(match: re.Match[str], declared: Declared) -> Made | None:
    words, buffer, place, value = match.groups()
    declared.buffer(buffer)
    element, variable = declared.expression(place), value.strip()
    if not declared.pure(value):
        raise SyntaxError(f"{value[:80]!r} is nothing that is known")

    def act(run: Run, threads: Class, line: int) -> None:
        tensor, elements = run.fetched.get(variable, ("", ELEMENTS[words]))
        source = threads.names[variable] if tensor else 0
        run.see(
            threads, line, "write", buffer, element=run.value(element, threads), tensor=tensor, source=source,
            elements=elements,
        )  # fmt: skip

    return Made(act)


def _copy_by_hand(match: re.Match[str], declared: Declared) -> Made:
    words, buffer, place, tensor, origin = match.groups()
    declared.buffer(buffer)
    element, source = declared.expression(place), declared.expression(origin)

    def act(run: Run, threads: Class, line: int) -> None:
        run.see(
            threads, line, "write", buffer, element=run.value(element, threads), tensor=tensor,
            source=run.value(source, threads), elements=ELEMENTS[words],
        )  # fmt: skip

    return Made(act)


def _stmatrix(match: re.Match[str], declared: Declared) -> Made:
    address, *registers = arguments(match[1])
    buffer, element = shared_address(address, declared)
    if len(registers) != 4 or not all(map(declared.pure, registers)):
        raise SyntaxError(f"an stmatrix of a form that is not known: {match.string[:80]!r}")

    def act(run: Run, threads: Class, line: int) -> None:
        # A lane gives the address of a row of 8 of one of four matrices.
        at = run.value(element, threads)
        run.see(threads, line, "write", buffer, element=at, tensor="", source=0, elements=8)

    return Made(act)


def _read(match: re.Match[str], declared: Declared) -> Made | None:
    target, words, buffer, place = match.groups()
    element = declared.expression(place)
    declared.register(target), declared.buffer(buffer)

    def act(run: Run, threads: Class, line: int) -> None:
        at = run.value(element, threads)
        run.see(threads, line, "read", buffer, element=at, elements=ELEMENTS[words])

    return Made(act)


def _output(match: re.Match[str], declared: Declared) -> Made | None:
    words, tensor, place, value = match.groups()
    if tensor in declared.registers or not declared.pure(value):
        return None
    element = declared.expression(place)

    def act(run: Run, threads: Class, line: int) -> None:
        run.see(threads, line, "output", tensor, element=run.value(element, threads), elements=ELEMENTS[words])

    return Made(act)


def registers_from(text: str) -> tuple[str, int]:
    """(variable, element) that a device function's registers start with."""
    match = REGISTERS.match(text)
    if not match:
        raise SyntaxError(f"{text[:80]!r} are no registers")
    return match[1] or match[2], int(match[3] or 0)


def _vector_output(match: re.Match[str], declared: Declared) -> Made:
    bounded, head_dim, dtype, given, tensor, place, rest = match.groups()
    # Contiguous rows are head_dim apart, which the device function is made for.
    rows, apart = [*arguments(rest), head_dim][:2]
    element, bound, stride = declared.expression(place), declared.expression(rows), declared.expression(apart)
    registers, index = registers_from(given)
    declared.register(registers)

    def act(run: Run, threads: Class, line: int) -> None:
        run.see(
            threads, line, "rows of output", tensor, element=run.value(element, threads), head_dim=int(head_dim),
            dtype="bfloat16" if dtype == "true" else "float16", registers=registers, index=index,
            rows=run.value(bound, threads), row_stride=run.value(stride, threads), bounded=bool(bounded),
        )  # fmt: skip

    return Made(act)


# Read as to the place in memory. Which of a thread's registers it is, or what zeros are, is for the numbers to show.
WRITE, READ, OUTPUT, FETCH = (f"{kind}, numbers: registers" for kind in ("write", "read", "output", "fetch"))
COPY_CALLS = (
    # tl::tma_load(K_desc, K_full[0], (&(((half_t*)K_shared)[(i * 8192)])), (i * 64), (j * 128), head_2, bz_2);
    # tl::tma_load_multicast(K_desc, K_full[0], (&(((half_t*)K_shared)[(i * 8192)])), (uint16_t)(3), (i * 64), ...);
    Call("tma load", re.compile(r"tl::tma_load(_multicast)?\((.+)\);$"), _tma_load),
    # tl::tma_store(Output_desc, (&(((half_t*)Q_shared)[(i * 4096)])), (i * 64), first_row_3, head_3, bz_3);
    Call("tma store", re.compile(r"tl::tma_store\((.+)\);$"), _tma_store),
    plain("commit store")(r"tl::tma_store_arrive\(\);$"),
    plain("stored")(r"tl::tma_store_wait<(\d+), true>\(\);$"),
    # tl::cp_async_gs<16>((&(((half_t*)K_shared)[...])), (&(K[...])));
    # tl::cp_async_gs_conditional<16>((&(((half_t*)K_shared)[...])), (&(K[...])), (... < seq_kv));
    Call("copy", re.compile(r"tl::cp_async_gs(_conditional)?<(4|8|16)>\((.+)\);$"), _cp_async),
    plain("commit copies")(r"tl::cp_async_commit\(\);$"),
    plain("copies wait")(r"tl::cp_async_wait<(\d+)>\(\);$"),
    # condval = *(uint4*)(Q + (...));
    Call(FETCH, re.compile(r"(\w+) = \*\((uint\d)\*\)\((\w+) \+ (.+)\);$"), _fetch),
    # condval = make_uint4(__pack_half2(broadcast_var, broadcast_var), ...);
    Call(
        FETCH,
        re.compile(
            r"(\w+) = make_uint[24]\((?:__pack_\w+\(broadcast_var(?:_\d+)?, broadcast_var(?:_\d+)?\)(?:, )?)+\);$"
        ),
        _zeros,
    ),
    # *(uint4*)(((half_t*)Q_shared) + (...)) = *(uint4*)(Q + (...));
    Call(WRITE, re.compile(rf"\*\((uint4)\*\){SHARED} = \*\(uint4\*\)\(([A-Z]\w*) \+ (.+)\);$"), _copy_by_hand),
    # *(uint4*)(((half_t*)Q_shared) + (...)) = condval;
    Call(WRITE, re.compile(rf"\*\((uint\d)\*\){SHARED} = (.+);$"), _write),
    Call(WRITE, re.compile(r"tl::ptx_stmatrix_m8n8_x4\((.+)\);$"), _stmatrix),
    # *(uint1*)(Q_local + (i_4 * 2)) = *(uint1*)(((half_t*)Q_shared) + (...));
    Call(READ, re.compile(rf"\*\(\w+\*\)\((\w+) \+ [^=]+\) = \*\((uint\d)\*\){SHARED};$"), _read),
    # *(uint1*)(Output + (...)) = *(uint1*)(Output_local_cast + 0);
    Call(OUTPUT, re.compile(r"\*\((uint\d)\*\)\((\w+) \+ (.+?)\) = (.+);$"), _output),
    # tl_attention_store<128, false>(acc_o, (&(Output[...])), (seq_q - first_row_3));    ..., Output_row_stride);
    # tl_attention_store<128, false>((&(acc_o[64])), ...    tl_attention_store_columns<104, ...
    Call(
        OUTPUT,
        re.compile(
            r"tl_attention_store(_columns)?<(\d+), (true|false)>\((\w+|\(&\(\w+\[\d+\]\)\)), \(&\((\w+)\[(.+)\]\)\), (.+)\);$"
        ),
        _vector_output,
    ),
)
