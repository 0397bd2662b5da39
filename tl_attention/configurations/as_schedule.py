"""A configuration as a schedule of the mma.sync lowering: its options are places in the order, and keys."""

from __future__ import annotations

from tl_attention.configurations.configuration import STEP, STEP_COLUMNS, WHOLE, Configuration
from tl_attention.errors import InputError
from tl_attention.loop.table import chunk_names
from tl_attention.schedule.key_errors import first_error
from tl_attention.schedule.key_words import dotted
from tl_attention.schedule.options import KernelOptions, SoftmaxOptions, Split, Waits
from tl_attention.schedule.schedule import Schedule

LOWERING = "mma_sync"
SOFTMAX = ("max_prev", "max_init", "row_max", "max_merge", "scale", "exp", "row_sum", "sum_merge", "rescale")


def schedule_of(configuration: Configuration) -> Schedule:
    """The schedule that runs as the configuration says.

    An iteration computes the scores of a KV block, their softmax, and the output of the same block. Where it is `eager`,
    V(t) is copied right behind the barrier with which iteration t starts, and K(t+1) right behind the softmax, before the
    fragments of V(t) are loaded; else each is copied where its fragments are needed. Raises InputError where the tile
    breaks a rule of the lowering.
    """
    try:
        return _schedule(configuration)
    except ValueError as error:
        key, message = first_error(error, Schedule)
        raise InputError(f"configuration '{configuration}': {dotted(key)}{message}") from None


def _schedule(configuration: Configuration) -> Schedule:
    c = configuration
    columns, keys = _steps(c.head_dim), _steps(c.block_N)
    of_scores = {"frag_k": c.k_fragments} | ({} if c.q_fragments == WHOLE else {"frag_q": c.q_fragments})
    scores = ("mask", *_multiplied("mma0", of_scores, columns, c.buffer))
    output = ("cast", *_multiplied("mma1", {"frag_v": c.v_fragments}, keys, c.buffer))
    if c.eager:
        # K is copied a block ahead, by iteration t's last part for iteration t+1.
        placed = [(("load_v",), 1), (scores, 1), (SOFTMAX, 1), (("load_k",), 0), (output, 1)]
        waits = Waits(load_k="load_v", load_v="load_k")
    else:
        placed = [(group, 0) for group in (("load_k",), scores, SOFTMAX, ("load_v",), output)]
        waits = Waits()
    return Schedule(
        lowering=LOWERING,
        kv_order="descending",
        block_M=c.block_M,
        block_N=c.block_N,
        threads=c.threads,
        num_stages=1,
        group=tuple(group for group, _ in placed),
        order=tuple(range(len(placed))),
        stage=tuple(stage for _, stage in placed),
        split=Split(mma0=columns, mma1=keys),
        wait_before=waits,
        kernel=KernelOptions(
            q_operand="registers" if c.q_fragments == WHOLE else "shared", swizzle=c.swizzled, ldmatrix="x4"
        ),
        softmax=SoftmaxOptions(fused_scale=c.opt_softmax),
    )


def _steps(columns: int) -> tuple[int, ...] | None:
    """The widths of the steps in which so many columns are multiplied; None for a single one, which is not split."""
    count = columns // STEP_COLUMNS
    return (STEP_COLUMNS,) * count if count > 1 else None


def _multiplied(product: str, loads: dict[str, int], widths: tuple[int, ...] | None, buffer: bool) -> list[str]:
    """A product's steps, and the loads of their fragments: `loads` has how many of each operand come at a time."""
    multiplied = chunk_names(product, widths)
    steps = len(multiplied)
    order = [name for load, count in loads.items() if count == WHOLE for name in chunk_names(load, widths)]
    in_steps = [chunk_names(load, widths) for load, count in loads.items() if count == STEP]
    ahead = int(buffer)
    for step in range(-ahead, steps):
        order += [names[step + ahead] for names in in_steps if step + ahead < steps]
        order += [multiplied[step]] if step >= 0 else []
    return order
