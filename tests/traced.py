"""Reads off TileLang's TVM what a kernel really is: the statements as traced, the loop as lowered."""

import re
from dataclasses import dataclass

import tilelang  # noqa: F401  (puts the TVM that it bundles on the path)
from tvm import tirx
from tvm.tirx.stmt_functor import post_order_visit

READ, WRITE = 1, 2
PIPELINE_KEYS = ("tl_pipeline_order", "num_stages")


@dataclass(frozen=True)
class TracedStatement:
    """A traced statement is one of the pipelined loop as TileLang traced it, with the buffers it reads and writes."""

    kind: str
    reads: frozenset[str]
    writes: frozenset[str]


def traced_statements(prim_func: tirx.PrimFunc) -> list[TracedStatement]:
    """Returns the statements of the pipelined loop, in source order; scalar bindings are not statements."""
    loop = _pipelined_loop(prim_func)
    return [_traced(statement) for statement in _entries(loop.body) if not isinstance(statement, tirx.Bind)]


Emitted = tuple[str, str | TracedStatement]
# Patterns of the warp-specialised kernel's operations; a group is what is told of an operation.
CALLS = {
    "wait": r"T\.mbarrier_wait_parity\((\w)_full\[",
    "products wait": r"T\.wait_wgmma\((\d+)\)",
    "release": r"T\.tl_shuffle_elect\(32\):(?s:.*)\b(\w)_empty\[",
    "turn": r"T\.tvm_storage_sync\(\"shared\", (1 \+ wg), 256\)",
    "pass": r"T\.named_barrier_arrive\((2 - wg), 256\)",
    "hold": r"T\.call_extern\(\"handle\", \"tl_attention_((?:hold|hold_last|resume)\b.*?)\",",
    "put": r"T\.call_extern\(\"handle\", \"tl_attention_store_p<(.*?)>\"",
    "fence of what is shared": r"T\.(fence_proxy_async)\(",
    "share": r"T\.tvm_storage_sync\(\"shared\", (4 \+ wg), 128\)",
    "fence": r"T\.warpgroup_fence_operand\(\"float32\", (\w+)",
}


def specialized_phases(prim_func: tirx.PrimFunc) -> tuple[list[Emitted], list[list[Emitted]], list[Emitted]]:
    """Returns what a computing warpgroup does, in order: before the loops over KV blocks, in each, and after them."""
    sequences: list[tirx.SeqStmt] = []
    post_order_visit(prim_func.body, lambda node: sequences.append(node) if isinstance(node, tirx.SeqStmt) else None)
    entries = max((_entries(sequence) for sequence in sequences), key=lambda found: sum(map(_is_block_loop, found)))
    loops = [number for number, entry in enumerate(entries) if _is_block_loop(entry)]
    return (
        _emitted(entries[: loops[0]]),
        [_emitted(_entries(entries[number].body)) for number in loops],
        _emitted(entries[loops[-1] + 1 :]),
    )


def _is_block_loop(entry: tirx.Stmt) -> bool:
    return isinstance(entry, tirx.For) and entry.kind == tirx.ForKind.SERIAL and entry.loop_var.name == "t"


def _emitted(entries: list[tirx.Stmt]) -> list[Emitted]:
    found: list[Emitted] = []
    for entry in entries:
        statement, text = _traced(entry), str(entry)
        calls = [(kind, match[1]) for kind, pattern in CALLS.items() if (match := re.search(pattern, text))]
        if statement.kind == "wgmma_gemm":
            found.append(("product", statement))
        elif statement.writes and not isinstance(entry, tirx.Bind):
            found.append(("vector", statement))
        else:
            found += calls
    return found


def _pipelined_loop(prim_func: tirx.PrimFunc) -> tirx.For:
    loops: list[tirx.For] = []

    def collect(node: object) -> None:
        if isinstance(node, tirx.For) and any(key in node.annotations for key in PIPELINE_KEYS):
            loops.append(node)

    post_order_visit(prim_func.body, collect)
    assert len(loops) == 1, f"expected one pipelined loop, found {len(loops)}"
    return loops[0]


def _entries(body: tirx.Stmt) -> list[tirx.Stmt]:
    if isinstance(body, tirx.SeqStmt):
        return [entry for part in body.seq for entry in _entries(part)]
    return [body]


def _traced(statement: tirx.Stmt) -> TracedStatement:
    reads: set[str] = set()
    writes: set[str] = set()
    calls: list[str] = []
    regions: set[int] = set()

    def visit(node: object) -> None:
        if isinstance(node, tirx.Call):
            name = str(getattr(node.op, "name", ""))
            if name.endswith("region"):
                access = int(node.args[1])
                load = node.args[0]
                regions.add(load.__hash__())
                if access & READ:
                    reads.add(load.buffer.name)
                if access & WRITE:
                    writes.add(load.buffer.name)
            elif name.startswith("tl.tileop."):
                calls.append(name.removeprefix("tl.tileop."))
                # A reduction that does not clear its destination reads it, though its region says write.
                if name.endswith("reduce") and not bool(node.args[4]):
                    reads.add(node.args[1].args[0].buffer.name)
        elif isinstance(node, tirx.BufferStore):
            writes.add(node.buffer.name)

    def visit_loads(node: object) -> None:
        if isinstance(node, tirx.BufferLoad) and node.__hash__() not in regions:
            reads.add(node.buffer.name)

    post_order_visit(statement, visit)
    post_order_visit(statement, visit_loads)
    kind = calls[0] if calls else "parallel"
    return TracedStatement(kind, frozenset(reads), frozenset(writes))
