"""This module reads the calls that move tiles (TMA, cp.async, the threads' own), and numbers of heads and rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

from tl_attention.codeproof.read.declarations import Declarations
from tl_attention.codeproof.read.expression import Expression, arguments, parsed
from tl_attention.codeproof.read.nodes import PER_HEAD, Effect
from tl_attention.codeproof.read.text import Form
from tl_attention.codeproof.run.run import Run, inside_of, numbered_call, recorder
from tl_attention.codeproof.run.threads import ThreadClass
from tl_attention.codeproof.tiles.tensors import RAGGED_ROWS
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.kernels.backward.roles import ROW_FACTS
from tl_attention.problem.features import INPUTS
from tl_attention.problem.shape import DTYPE_BYTES

# (&(((half_t*)K_shared)[((i * 8192) + 16384)]))
IN_SHARED = re.compile(r"\(&\(\(\((half_t|bfloat16_t|float)\*\)(\w+)_shared\)\[(.+)\]\)\)$")
# (&(K[(((int64_t)i) * (int64_t)2048)]))
IN_GLOBAL = re.compile(r"\(&\((\w+)\[(.+)\]\)\)$")
BARRIER = re.compile(r"(\w+)\[(.+)\]$")
MASK = re.compile(r"\(uint16_t\)\((\d+)\)$")
# *(uint4*)(((half_t*)Q_shared) + (i * 8))    ((half_t*)K_shared)[i]
SHARED = r"(?:\*\((?P<of>uint\d)\*\)\()?\(\((?:half_t|bfloat16_t)\*\)(\w+)_shared\)(?(of) \+ |\[)(.+?)(?(of)\)|\])"
# A thread's copy of up to 16 bytes, of 2-byte elements, or of one element.
ELEMENTS = {"uint1": 2, "uint2": 4, "uint4": 8, None: 1}
# What zeros are made of.
ZERO, ZERO_OF = r"broadcast_var(?:_\d+)?", r"(?:half_t|bfloat16_t)\(0x0p\+0f/\*0\.000000e\+00\*/\)"
PUT, HAND_OVER, CLEAR, VECTOR = "put", "hand over", "clear", "vector"
# Tensors that have a number for each head.
TENSORS = tuple(feature.name for feature in INPUTS if feature.per_head)
# The bytes of numbers of a thread's two rows, such as logarithms, and the number of rows.
LSE_BYTES, LSE_ROWS = 8, 2
# What a tile has of one head alone.
ONE_HEAD = (1, 0)
# A thread's number among all threads that compute, from the first on.
OWN = "((int)threadIdx.x)"
# The dtype of a device function, by whether the function is for bfloat16.
DTYPES = {"true": "bfloat16", "false": "float16"}
# acc_o    (&(acc_o[64]))
REGISTERS = re.compile(r"(?:(\w+)|\(&\((\w+)\[(\d+)\]\)\))$")


def shared_address(text: str, declared: Declarations) -> tuple[str, Expression]:
    """Parses a C address in shared memory into (buffer, element); raises SyntaxError for any other text."""
    match = IN_SHARED.match(text)
    if not match:
        raise SyntaxError(f"{text[:80]!r} is no address in shared memory")
    return declared.buffer(match[2]), declared.expression(match[3])


def _place(texts: Sequence[str], declared: Declarations) -> dict[str, Expression]:
    """Parses the coordinates of a TMA box, and returns the expressions by name, as column, row, head and batch."""
    given = [declared.expression(text) for text in texts]
    if len(given) == 3:
        # Of a tensor with a number for each row.
        return {"column": parsed("0"), **dict(zip(("row", "head", "batch"), given, strict=True))}
    if len(given) == 4:
        return dict(zip(("column", "row", "head", "batch"), given, strict=True))
    # Of a ragged view: the row among those of all sequences, and for the batch the row behind its sequence's last.
    column, row, head, end, wrap = given
    if wrap.constant != RAGGED_ROWS:
        raise SyntaxError(f"a box of a ragged view at {texts[-1]}, expected {RAGGED_ROWS}")
    # TMA adds them with more than 32 bits.
    of_all = Expression(("-", ("+", ("call", "int64_t", row.tree), end.tree), ("number", RAGGED_ROWS)))
    return {"column": column, "row": of_all, "head": head, "batch": end}


def _tma_load(match: re.Match[str], declared: Declarations) -> Effect:
    descriptor, barrier, address, *rest = arguments(match[2])
    full, (buffer, element) = BARRIER.match(barrier), shared_address(address, declared)
    to = MASK.match(rest.pop(0)) if match[1] else None
    if not full or bool(match[1]) != bool(to) or len(rest) not in (3, 4, 5):
        raise SyntaxError(f"a load of a form that is not known: {match.string[:80]!r}")
    name, at = declared.barrier(full[1]), declared.expression(full[2])
    place = _place(rest, declared)

    blocks = int(to[1]) if to else None
    return recorder(
        "tma load", buffer, index=at, element=element, barrier=name, descriptor=descriptor, blocks=blocks, **place
    )


def _tma_store(match: re.Match[str], declared: Declarations) -> Effect:
    descriptor, address, *rest = arguments(match[1])
    buffer, element = shared_address(address, declared)
    return recorder("tma store", buffer, element=element, descriptor=descriptor, **_place(rest, declared))


def _cp_async(match: re.Match[str], declared: Declarations) -> Effect:
    given = arguments(match[3])
    (buffer, element), source = shared_address(given[0], declared), IN_GLOBAL.match(given[1])
    if not source or len(given) != (3 if match[1] else 2):
        raise SyntaxError(f"a copy of a form that is not known: {match.string[:80]!r}")
    origin, inside = declared.expression(source[2]), declared.expression(given[2] if match[1] else "1")
    elements = int(match[2]) // DTYPE_BYTES
    return recorder("copy", buffer, element=element, tensor=source[1], source=origin, inside=inside, elements=elements)


def _fetch(match: re.Match[str], declared: Declarations) -> Effect | None:
    """Returns the Effect of a line that loads a variable from global memory; None for others."""
    variable, words, tensor, place = match.groups()
    if declared.registers.get(variable) != ELEMENTS[words] * DTYPE_BYTES or tensor in declared.registers:
        return None
    if declared.loaded.setdefault(variable, (tensor, ELEMENTS[words])) != (tensor, ELEMENTS[words]):
        raise SyntaxError(f"{variable} is loaded from {tensor}, elsewhere from {declared.loaded[variable][0]}")
    return _set(variable, declared.expression(place), 1)


def _zero(match: re.Match[str], declared: Declarations) -> Effect:
    """Returns the Effect of a variable that becomes 0; with any other number a run does not know it."""
    return Effect(lambda run, threads, line: threads.names.update({match[2]: 0}), frozenset({match[2]}))


def _zeros(match: re.Match[str], declared: Declarations) -> Effect:
    return _set(match[1], parsed(" + ".join(sorted({"0", *re.findall(ZERO, match[2])}))), 0)


def _set(variable: str, source: Expression, inside: int) -> Effect:
    """Returns the Effect that notes as a variable's value where it is loaded, and that it is (1), or is zeros (0)."""

    def act(run: Run, threads: ThreadClass, line: int) -> None:
        # A load whose value is lost may be one behind the tensor's end.
        if variable in threads.names:
            raise Unsafe(f"line {line + 1} sets {variable} for the second time")
        threads.names[variable], threads.names[inside_of(variable)] = run.value(source, threads), inside

    return Effect(act, frozenset({variable, inside_of(variable)}))


def _write(match: re.Match[str], declared: Declarations) -> Effect:
    words, buffer, place, value = match.groups()
    declared.buffer(buffer)
    element, variable = declared.expression(place), value.strip()
    tensor, elements = declared.loaded.get(variable, ("", ELEMENTS[words]))
    if not tensor and not declared.pure(value):
        raise SyntaxError(f"{value[:80]!r} is nothing that is known")
    names = {"source": variable, "inside": inside_of(variable)} if tensor else {}
    origin = {key: Expression(("name", name)) for key, name in names.items()}
    return recorder("write", buffer, element=element, tensor=tensor, elements=elements, **origin)


def _copy_by_hand(match: re.Match[str], declared: Declarations) -> Effect:
    words, buffer, place, tensor, origin = match.groups()
    declared.buffer(buffer)
    element, source = declared.expression(place), declared.expression(origin)
    return recorder("write", buffer, element=element, tensor=tensor, source=source, inside=1, elements=ELEMENTS[words])


def _stmatrix(match: re.Match[str], declared: Declarations) -> Effect:
    address, *registers = arguments(match[1])
    buffer, element = shared_address(address, declared)
    if len(registers) != 4 or not all(map(declared.pure, registers)):
        raise SyntaxError(f"an stmatrix of a form that is not known: {match.string[:80]!r}")
    # A lane gives the address of a row of 8 of one of four matrices.
    return recorder("write", buffer, element=element, tensor="", elements=8)


def _read(match: re.Match[str], declared: Declarations) -> Effect | None:
    target, words, buffer, place = match.groups()
    element = declared.expression(place)
    declared.register(target), declared.buffer(buffer)
    return recorder("read", buffer, element=element, elements=ELEMENTS[words])


def _read_vector(match: re.Match[str], declared: Declarations) -> Effect:
    """Returns the Effect of a thread's read of numbers of rows, which came with a tile, from shared memory."""
    target, array, words, buffer, place = match.groups()
    declared.register(target or array), declared.buffer(buffer)
    return recorder(VECTOR, buffer, element=declared.expression(place), elements=int(words or 1))


def _output(match: re.Match[str], declared: Declarations) -> Effect | None:
    words, tensor, place, value = match.groups()
    if tensor in declared.registers or not declared.pure(value):
        return None
    return recorder("output", tensor, element=declared.expression(place), elements=ELEMENTS[words])


def registers_from(text: str) -> tuple[str, int]:
    """Parses registers, `acc_o` or `(&(acc_o[64]))`, into (variable, first element); raises SyntaxError for others."""
    match = REGISTERS.match(text)
    if not match:
        raise SyntaxError(f"{text[:80]!r} are no registers")
    return match[1] or match[2], int(match[3] or 0)


def _vector_output(match: re.Match[str], declared: Declarations) -> Effect:
    bounded, head_dim, dtype, given, tensor, place, rest = match.groups()
    # Contiguous rows are head_dim apart, which the device function is made for.
    rows, apart = [*arguments(rest), head_dim][:2]
    element, bound, stride = declared.expression(place), declared.expression(rows), declared.expression(apart)
    registers, index = registers_from(given)
    declared.register(registers)
    return recorder(
        "rows of output", tensor, element=element, head_dim=int(head_dim), dtype=DTYPES[dtype], registers=registers,
        index=index, rows=bound, row_stride=stride, bounded=bool(bounded), heads=ONE_HEAD,
    )  # fmt: skip


def _output_of_heads(match: re.Match[str], declared: Declarations) -> Effect:
    """Returns the Effect of a store of rows of several heads, which the device function knows; fp32 for parts."""
    dtype, *sizes, given, tensor, place, rest = match.groups()
    columns, *heads = map(int, sizes)
    rows, row_stride, head_stride = (declared.expression(text) for text in arguments(rest))
    registers, index = registers_from(given)
    declared.register(registers)
    return recorder(
        "rows of output", tensor, element=declared.expression(place), head_dim=columns,
        dtype=DTYPES[dtype] if dtype else "float32", registers=registers, index=index, rows=rows, row_stride=row_stride,
        bounded=False, heads=tuple(heads), head_stride=head_stride,
    )  # fmt: skip


def _part_output(match: re.Match[str], declared: Declarations) -> Effect:
    columns, given, tensor, place, rows = match.groups()
    registers, index = registers_from(given)
    declared.register(registers)
    return recorder(
        "rows of output", tensor, element=declared.expression(place), head_dim=int(columns), dtype="float32",
        registers=registers, index=index, rows=declared.expression(rows),
        row_stride=declared.expression(columns), bounded=False, heads=ONE_HEAD,
    )  # fmt: skip


def _lse(match: re.Match[str], declared: Declarations) -> Effect:
    """Returns the Effect of a call that stores the LSE, with place and bound; raises SyntaxError for other forms."""
    # The bound is how many rows there may be. That each row is stored once, by one lane, is in the text of the device
    # function. Which registers the function is given, and the scale, are for the numbers to show.
    given, heads = arguments(match[3]), tuple(map(int, match.groups()[:2])) if match[1] else ONE_HEAD
    place = IN_GLOBAL.match(given[3]) if len(given) == 6 + (heads != ONE_HEAD) and given[5] == OWN else None
    of_rows = [registers_from(text) for text in given[:2]]
    index = of_rows[0][1]
    is_plain = all(
        at == index and LSE_BYTES // LSE_ROWS * at + LSE_BYTES <= declared.registers.get(name, 0)
        for name, at in of_rows
    )
    if not place or place[1] in declared.registers or not is_plain or not declared.pure(given[2]):
        raise SyntaxError(f"a store of logarithms of a form that is not known: {match.string[:80]!r}")
    element, rows = declared.expression(place[2]), declared.expression(given[4])
    apart = {"head_stride": declared.expression(given[6])} if heads != ONE_HEAD else {}
    return recorder("rows of lse", place[1], element=element, rows=rows, index=index, heads=heads, **apart)


def _row_facts(match: re.Match[str], declared: Declarations) -> Effect:
    """Returns the Effect of a call that finds LSE and D of rows, and stores both; SyntaxError for other forms."""
    # That each row is read and stored once is in the text of the device function, which is compared to the letter.
    # Which registers of the two variables are a row's is for the numbers to show.
    columns, dtype, lse, d, rest = match.groups()
    given = arguments(rest)
    places = [place for place in takewhile(bool, map(IN_GLOBAL.match, given)) if place]
    numbers = given[len(places) :]
    # Rows of O and of dO lie as far apart as is said, or one behind the other.
    numbers += [columns, columns] if len(numbers) == 1 else []
    of_rows = all(declared.registers.get(name) == LSE_BYTES for name in (lse, d)) and lse != d
    if not of_rows or len(numbers) != 3:
        raise SyntaxError(f"LSE and D of a form that is not known: {match.string[:80]!r}")
    elements = {place[1]: declared.expression(place[2]) for place in places}
    form = {"tensors": tuple(place[1] for place in places), "columns": int(columns), "dtype": DTYPES[dtype]}
    rows, output_stride, grad_stride = map(declared.expression, numbers)
    apart = {"output_stride": output_stride, "grad_stride": grad_stride}
    return recorder(ROW_FACTS, "", rows=rows, **apart, **elements, **form)


def _put(match: re.Match[str], declared: Declarations) -> Effect:
    """Returns the Effect of a call that stores columns of P in shared memory; raises SyntaxError for other forms."""
    # It keeps the place, the columns and the width of the tile. That a warp puts its own 16 rows where a product reads
    # them, each once, is in the text of the device function, as is the conversion. Which registers go there is for the
    # numbers to show.
    columns, first, end = map(int, match.groups()[:3])
    registers, place = match[5], IN_SHARED.match(match[6])
    # A thread has two rows of 64, and every fourth pair of columns.
    if not place or declared.registers.get(registers) != 4 * columns // 2:
        raise SyntaxError(f"a store of P of a form that is not known: {match.string[:80]!r}")
    buffer, element = declared.buffer(place[2]), declared.expression(place[3])
    return recorder(PUT, buffer, element=element, form=(columns, DTYPES[match[4]], registers), columns=(first, end))


def _clear(match: re.Match[str], declared: Declarations) -> Effect:
    """Returns the Effect of a warp's call that sets rows of a tile to 0, from one on; which they are is in its text."""
    buffer, element = shared_address(match[3], declared)
    return recorder(CLEAR, buffer, element=element, form=(int(match[1]), int(match[2])))


def _of_head(match: re.Match[str], declared: Declarations) -> Effect:
    declared.register(match[1])
    return recorder(PER_HEAD, match[2], value=declared.expression(match[3]), heads=ONE_HEAD)


def _of_heads(match: re.Match[str], declared: Declarations) -> Effect:
    """Returns the Effect of a read of a number for each of a thread's two rows, of several heads from one on."""
    if declared.registers.get(match[3]) != LSE_BYTES:
        raise SyntaxError(f"numbers of heads of a form that is not known: {match.string[:80]!r}")
    heads = int(match[1]), int(match[2])
    return recorder(PER_HEAD, match[4], value=declared.expression(match[5]), heads=heads)


# These kinds are read for the place in memory. Which of a thread's registers is moved is for the numbers to show.
WRITE, READ, OUTPUT, FETCH = (f"{kind}, numbers: registers" for kind in ("write", "read", "output", "fetch"))
COPY_CALLS = (
    # tl::tma_load(K_desc, K_full[0], (&(((half_t*)K_shared)[(i * 8192)])), (i * 64), (j * 128), head_2, bz_2);
    # tl::tma_load_multicast(K_desc, K_full[0], (&(((half_t*)K_shared)[(i * 8192)])), (uint16_t)(3), (i * 64), ...);
    Form("tma load", re.compile(r"tl::tma_load(_multicast)?\((.+)\);$"), _tma_load),
    # tl::tma_store(Output_desc, (&(((half_t*)Q_shared)[(i * 4096)])), (i * 64), first_row_3, head_3, bz_3);
    Form("tma store", re.compile(r"tl::tma_store\((.+)\);$"), _tma_store),
    numbered_call("commit store")(r"tl::tma_store_arrive\(\);$"),
    numbered_call("stored")(r"tl::tma_store_wait<(\d+), true>\(\);$"),
    # tl::cp_async_gs<16>((&(((half_t*)K_shared)[...])), (&(K[...])));
    # tl::cp_async_gs_conditional<16>((&(((half_t*)K_shared)[...])), (&(K[...])), (... < seq_kv));
    Form("copy", re.compile(r"tl::cp_async_gs(_conditional)?<(4|8|16)>\((.+)\);$"), _cp_async),
    numbered_call("commit copies")(r"tl::cp_async_commit\(\);$"),
    numbered_call("copies wait")(r"tl::cp_async_wait<(\d+)>\(\);$"),
    # condval = *(uint4*)(Q + (...));    condval_1 = K[...];
    Form(FETCH, re.compile(r"(\w+) = (?:\*\((uint\d)\*\)\()?([A-Z]\w*)(?(2) \+ |\[)(.+)(?(2)\)|\]);$"), _fetch),
    # half_t broadcast_var = half_t(0x0p+0f/*0.000000e+00*/);
    Form("numbers: arithmetic", re.compile(rf"(half_t|bfloat16_t) ({ZERO}) = (?=\1){ZERO_OF};$"), _zero),
    # condval = make_uint4(__pack_half2(broadcast_var, broadcast_var), ...);
    # condval_1 = half_t(0x0p+0f/*0.000000e+00*/);
    Form(FETCH, re.compile(rf"(\w+) = (make_uint[24]\((__pack_\w+\({ZERO}, {ZERO}\)(, )?)+\)|{ZERO_OF});$"), _zeros),
    # *(uint4*)(((half_t*)Q_shared) + (...)) = *(uint4*)(Q + (...));    ((half_t*)K_shared)[...] = K[...];
    Form(WRITE, re.compile(rf"{SHARED} = (?(1)\*\(\1\*\)\()([QKV])(?(1) \+ |\[)(.+)(?(1)\)|\]);$"), _copy_by_hand),
    # *(uint4*)(((half_t*)Q_shared) + (...)) = condval;    ((half_t*)K_shared)[...] = condval_1;
    Form(WRITE, re.compile(rf"{SHARED} = (.+);$"), _write),
    Form(WRITE, re.compile(r"tl::ptx_stmatrix_m8n8_x4\((.+)\);$"), _stmatrix),
    # *(uint1*)(Q_local + (i_4 * 2)) = *(uint1*)(((half_t*)Q_shared) + (...));
    Form(READ, re.compile(rf"\*\(\w+\*\)\((\w+) \+ [^=]+\) = (?=\*){SHARED};$"), _read),
    # float2 v__2 = *(float2*)(((float*)LSE_shared) + (...));
    # *(float2*)(D_shared_local_cast + 0) = *(float2*)(((float*)D_shared) + (...));
    Form(
        READ,
        re.compile(
            r"(?:float\d? (\w+)|\*\(float\d\*\)\((\w+) \+ \w+\)) = \*\(float(\d)\*\)\(\(\(float\*\)(\w+)_shared\) \+ (.+)\);$"
        ),
        _read_vector,
    ),
    # *(uint1*)(Output + (...)) = *(uint1*)(Output_local_cast + 0);
    Form(OUTPUT, re.compile(r"\*\((uint\d)\*\)\((\w+) \+ (.+?)\) = (.+);$"), _output),
    # tl_attention_store<128, false>(acc_o, (&(Output[...])), (seq_q - first_row_3));    ..., Output_row_stride);
    # tl_attention_store<128, false>((&(acc_o[64])), ...    tl_attention_store_columns<104, ...
    Form(
        OUTPUT,
        re.compile(
            r"tl_attention_store(_columns)?<(\d+), (true|false)>\((\w+|\(&\(\w+\[\d+\]\)\)), \(&\((\w+)\[(.+)\]\)\), (.+)\);$"
        ),
        _vector_output,
    ),
    # tl_attention_store_part<128>(acc_o, (&(Output[...])), (seq_q - first_row_3));
    Form(
        OUTPUT,
        re.compile(r"tl_attention_store_part<(\d+)>\((\w+|\(&\(\w+\[\d+\]\)\)), \(&\((\w+)\[(.+)\]\)\), (.+)\);$"),
        _part_output,
    ),
    # tl_attention_store_lse(scores_max, denominator, (softmax_scale * ...), (&(LSE[...])), (seq_q - ...), ...);
    # tl_attention_store_lse((&(scores_max[2])), (&(denominator[2])), ...
    # tl_attention_store_lse_of<4, 16>(scores_max, ..., ((int)threadIdx.x), seq_q);
    Form(OUTPUT, re.compile(r"tl_attention_store_lse(?:_of<(\d+), (\d+)>)?\((.+)\);$"), _lse),
    # tl_attention_store_of<true, 128, 4, 16>(acc_o, (&(Output[...])), (seq_q - first_row_3), 128, ...);
    # tl_attention_store_part_of<128, 4, 16>(...
    Form(
        OUTPUT,
        re.compile(
            r"tl_attention_store_(?:part_of<|of<(true|false), )(\d+), (\d+), (\d+)>"
            r"\((\w+|\(&\(\w+\[\d+\]\)\)), \(&\((\w+)\[(.+)\]\)\), (.+)\);$"
        ),
        _output_of_heads,
    ),
    # tl_attention_row_facts<128, true>(row_lse, row_d, (&(O[...])), (&(dO[...])), (&(LSE[...])), ..., (seq_q - row));
    Form(OUTPUT, re.compile(r"tl_attention_row_facts<(\d+), (true|false)>\((\w+), (\w+), (.+)\);$"), _row_facts),
    # tl_attention_store_p<192, 0, 192, true>(acc_s, (&(((bfloat16_t*)P_shared)[(((int64_t)wg_2) * (int64_t)12288)])));
    Form(WRITE, re.compile(r"tl_attention_store_p<(\d+), (\d+), (\d+), (true|false)>\((\w+), (.+)\);$"), _put),
    # tl_attention_clear<128, 63>((&(((half_t*)Q_shared)[(((int64_t)wg) * (int64_t)8192)])));
    Form(WRITE, re.compile(r"tl_attention_clear<(\d+), (\d+)>\((.+)\);$"), _clear),
    # tl_attention_read_heads<4, 16>(own, (&(Sinks[(head_3 * 4)])));
    Form(
        PER_HEAD,
        re.compile(rf"tl_attention_read_heads<(\d+), (\d+)>\((\w+), \(&\(({'|'.join(TENSORS)})\[(.+)\]\)\)\);$"),
        _of_heads,
    ),
    # own[0] = Sinks[((int64_t)head_3)];
    Form(PER_HEAD, re.compile(rf"(\w+)\[0\] = ({'|'.join(TENSORS)})\[(.+)\];$"), _of_head),
)
