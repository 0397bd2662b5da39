"""What the kernel really is, read off TileLang's TVM: the statements as traced, the loop as lowered."""

from __future__ import annotations

from dataclasses import dataclass

import tilelang  # noqa: F401  (puts the TVM that it bundles on the path)
from tvm import tirx
from tvm.tirx.stmt_functor import post_order_visit

READ, WRITE = 1, 2
PIPELINE_KEYS = ("tl_pipeline_order", "num_stages")


@dataclass(frozen=True)
class TracedStatement:
    """One statement of the pipelined loop as TileLang traced it, with the buffers it reads and writes."""

    kind: str
    reads: frozenset[str]
    writes: frozenset[str]


def traced_statements(prim_func: tirx.PrimFunc) -> list[TracedStatement]:
    """The statements of the pipelined loop, in source order; scalar bindings are not statements."""
    loop = _pipelined_loop(prim_func)
    return [_traced(statement) for statement in _entries(loop.body) if not isinstance(statement, tirx.Bind)]


def specialized_statements(prim_func: tirx.PrimFunc) -> list[list[TracedStatement]]:
    """The statements of each loop that holds both products, in emission order; loads, waits and barriers left out."""
    loops: list[tirx.For] = []

    def collect(node: object) -> None:
        if isinstance(node, tirx.For) and node.kind == tirx.ForKind.SERIAL:
            loops.append(node)

    post_order_visit(prim_func.body, collect)
    found = []
    for loop in loops:
        traced = [_traced(entry) for entry in _entries(loop.body) if not isinstance(entry, tirx.Bind)]
        statements = [statement for statement in traced if statement.writes]
        if sum(statement.kind == "wgmma_gemm" for statement in statements) == 2:
            found.append(statements)
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
