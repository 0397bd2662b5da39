"""The operations of a Program, as a kernel that is emitted from one reads them."""

from typing import NamedTuple


class Operation(NamedTuple):
    """One operation of an iteration: in iteration t it concerns KV block t - lag. `kind` is one of

    run         a vector statement
    issue       a load or a product
    wait        until that load has arrived, or until no more than `outstanding` products, or loads that are waited for in
                groups, are in flight, which were issued after that one
    acquire     a free buffer for that load
    release     the buffer that the load filled
    turn, pass  wait for the turn to issue products; give it to the other warpgroup
    sync        all threads: what each has waited for is there for all, and what it has read may be written over
    keep        Q in registers, for all blocks
    hold        the exponentials in `registers` (first, end) come before what follows; hold_last: the last of them does
    share       what all warps wrote of that statement's result is there for products, which read it from shared memory
    resume      the exponentials that follow come after what stands before
    """

    kind: str
    statement: str
    lag: int
    outstanding: int = 0
    registers: tuple[int, int] = (0, 0)


class Iteration(NamedTuple):
    """The operations of iteration t; in an epilogue t counts from the number of blocks."""

    t: int
    operations: tuple[Operation, ...]
