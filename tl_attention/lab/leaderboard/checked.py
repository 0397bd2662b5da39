"""This module compares the outputs that a submission's process wrote to files with attention in fp64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from tl_attention.lab.leaderboard.contract import TestLine
from tl_attention.lab.leaderboard.inputs import Change, Inputs
from tl_attention.lab.leaderboard.message import Message
from tl_attention.lab.leaderboard.reference import generate_input
from tl_attention.lab.oracle.reference import attention_fp64
from tl_attention.problem.mask import FULL

# The leaderboard accepts outputs within the first of these. The mean |output| of the ranked test is 0.015, where 1e-2
# passes almost anything, so each output is held to a tighter bound as well.
CONTRACT_TOLERANCE, TIGHT_TOLERANCE = 1e-2, 1e-3


def check(folder: Path, line: TestLine, device: str, message: Message) -> dict[str, Any]:
    """Compares a test's outputs in a folder with attention in fp64, and returns one verdict on all of them.

    `accepted` and `tight` say whether |output - expected| <= t + t * |expected| everywhere, with t = 1e-2 and 1e-3.
    `max_abs_error` is None for an output that is not finite. `reason` says why an output is not accepted or not tight.
    Timed calls that went on after their end are not accepted. Raises ValueError for a file of another size.
    """
    found = []
    for where, output, data in _outputs(folder, line, device, message):
        verdict = _compared(output, data)
        if not verdict["accepted"]:
            return verdict | {"reason": f"{where}{verdict['reason']}"}
        found.append(verdict)
    largest = {"max_abs_error": max(verdict["max_abs_error"] for verdict in found)}
    if late := message.late(device):
        return {"accepted": False, "tight": False, "reason": late} | largest
    reason = next((verdict["reason"] for verdict in found if verdict["reason"]), "")
    return {"accepted": True, "tight": all(verdict["tight"] for verdict in found), "reason": reason} | largest


Compared = tuple[str, torch.Tensor, Sequence[torch.Tensor]]


def _outputs(folder: Path, line: TestLine, device: str, message: Message) -> Iterator[Compared]:
    """Yields each output, or the rows of it that were read, with words for where it is, and the inputs of its call."""
    # The inputs are those that the process had: they are drawn anew, and changed before each timed call.
    first, second = (generate_input(**asdict(replace(line, seed=line.seed + n)), device=device) for n in (0, 1))
    inputs = Inputs(first, second)
    q, k, v = inputs.data
    yield "", _read(folder / "first.bin", q), inputs.data
    calls = len(message.changes)
    rows_of_calls = _read(folder / "rows.bin", q[inputs.rows_from(0)].expand(calls, -1, -1, -1, -1)) if calls else ()
    for number, (rows, change) in enumerate(zip(rows_of_calls, map(Change._make, message.changes))):
        inputs.change_keys(change)
        inputs.change_queries(change)
        where = f"right when it was not timed, wrong in timed call {number + 1}"
        yield f"{where}: ", rows, (q[inputs.rows_from(change.row)], k, v)
        if number == message.kept:
            yield f"{where}, in rows that were not read at once: ", _read(folder / "timed.bin", q), inputs.data
    inputs.change_all()
    where = "right at first, wrong for other inputs at the same addresses: "
    yield where, _read(folder / "second.bin", q), inputs.data


def _read(file: Path, like: torch.Tensor) -> torch.Tensor:
    """Reads a tensor's bytes from a file, with the shape, dtype and device of `like`."""
    content, size = bytearray(file.read_bytes()), like.numel() * like.element_size()
    if len(content) != size:
        raise ValueError(f"the output's file has {len(content):,} bytes, expected {size:,}")
    return torch.frombuffer(content, dtype=like.dtype).view(like.shape).to(like.device)


def _compared(output: torch.Tensor, data: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Compares an output with attention of its inputs in fp64, and returns the verdict on it."""
    if not_finite := output.numel() - int(output.isfinite().sum()):
        reason = f"{not_finite} of {output.numel()} values are not finite"
        return {"accepted": False, "tight": False, "max_abs_error": None, "reason": reason}
    expected = attention_fp64(*data, mask=FULL, scale=output.shape[-1] ** -0.5)
    error = (output - expected).abs()
    beyond = {t: int((error > t + t * expected.abs()).sum()) for t in (CONTRACT_TOLERANCE, TIGHT_TOLERANCE)}
    # The wider bound first: the first that is exceeded is the reason.
    missed = [f"{n} of {output.numel()} values are beyond rtol = atol = {t:g}" for t, n in beyond.items() if n]
    largest = float(error.max())
    return {
        "accepted": not beyond[CONTRACT_TOLERANCE],
        "tight": not missed,
        "max_abs_error": largest,
        "reason": f"{missed[0]}, max |error| {largest:.3g}" if missed else "",
    }
