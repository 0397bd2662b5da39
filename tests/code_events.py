"""Reads off a generated kernel's text what its processes do, as events: tests look at what the proof reads."""

import numpy as np

from tl_attention.codeproof.pipelined.code_proof import PipelinedProof
from tl_attention.codeproof.run.run import Run
from tl_attention.codeproof.run.stream import Stream
from tl_attention.codeproof.run.threads import Threads
from tl_attention.codeproof.tiles.unknowns import Unknowns
from tl_attention.codeproof.verdict import GeneratedCode
from tl_attention.codeproof.warp_specialized.code_proof import RolesProof
from tl_attention.problem.variant import Sizes
from tl_attention.problem.warpgroup import WARP, WARPS
from tl_attention.program.derivation import derive
from tl_attention.program.events import Event, Process
from tl_attention.schedule.schedule import Schedule


def role_events(
    schedule: Schedule, code: GeneratedCode, sizes: Sizes, tiles: int = 1, clusters: int = 1
) -> dict[Process, list[Event]]:
    """Returns the events of all processes of a launch's first clusters, for the first `tiles` tiles of each process.

    The events are of all iterations.
    """
    proof = RolesProof(schedule, derive(schedule), code)
    cluster, warpgroups = schedule.kernel.cluster, schedule.block_M // 64
    threads = Threads(np.arange(clusters * cluster), warpgroups + 1, tuple(range(WARPS)))
    known = Unknowns.from_numbers(proof, sizes)
    run = Run(proof.kernel, threads, known.names, tiles, cluster, {"TileCounter": (0, 0)})
    run.go()
    found, reading = {}, proof.reading(known.tensors)
    for block in range(clusters * cluster):
        for group in range(-1, warpgroups):
            # The producer is the first warp behind the warpgroups that compute.
            process = Process(block, group, WARPS if group >= 0 else 1)
            mine = (threads.block == block) & (threads.y == group % (warpgroups + 1))
            own = np.flatnonzero(mine & (threads.x < process.warps * WARP))
            found[process] = [*Stream(run, own, str(process), reading).events()]
    return found


def block_events(schedule: Schedule, code: GeneratedCode, sizes: Sizes) -> list[Event]:
    """Returns the events of the first thread block of a pipelined kernel, in all iterations."""
    proof = PipelinedProof(schedule, derive(schedule), code)
    threads = Threads(np.array([0]), 1, tuple(range(schedule.threads // WARP)))
    group = code.variant.some_group
    names = {
        **sizes._asdict(),
        "group": group,
        "heads_kv": sizes.heads // group,
        "blockIdx_x": 0,
        "blockIdx_y": 0,
        "blockIdx_z": 0,
    }
    run = Run(proof.kernel, threads, names)
    run.go()
    reading = proof.reading(Unknowns.from_numbers(proof, sizes).tensors)
    return [*Stream(run, np.arange(len(threads)), "the block", reading).events()]
