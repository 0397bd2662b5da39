"""A case of generated code has a random schedule, what TileLang makes of the schedule, and what the package says.

The functions here run in the processes of `corpus.py`.
"""

from __future__ import annotations

import random
import time
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

import yaml
from code_mutants.kernels import generated as generated_by_tilelang
from lower_case import DTYPES

from tl_attention.codeproof.registry import check_generated
from tl_attention.codeproof.verdict import GeneratedCode
from tl_attention.compiler.compiler_errors import telling_line
from tl_attention.errors import InputError, ScheduleRefused
from tl_attention.kernels.preflight import refuse_unless_safe
from tl_attention.kernels.registry import lowering_of, parameters_of
from tl_attention.lab.search.changes import walk
from tl_attention.problem import shape
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.variant import Sizes, Variant
from tl_attention.program.derivation import derive
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.named import resolve
from tl_attention.schedule.schedule import Schedule

ACCEPTED, NOT_LOWERED = "accepted", "TileLang: "
HEAD_DIMS = (64, 128)


@dataclass(frozen=True)
class GeneratedCase:
    """A case is one kernel as TileLang generated it, and what the package said of the kernel.

    `schedule` is YAML, the keys that are not at their defaults. `sizes` has batch, heads, seq_q and seq_kv, or is None
    for sizes of run time. `source` is the CUDA text and `host_plan` the host's plan: both are empty where TileLang
    failed. `verdict` is ACCEPTED, the refusal with its kind, or NOT_LOWERED and why. `commit` is the package's, and
    `proof_s` the seconds of a core that the proof took.
    """

    name: str
    label: str
    schedule: str
    head_dim: int
    dtype: str
    causal: bool
    sizes: tuple[int, int, int, int] | None = None
    source: str = ""
    host_plan: str = ""
    verdict: str = ""
    proof_s: float = 0.0
    commit: str = ""

    def __str__(self) -> str:
        sizes = f" {','.join(map(str, self.sizes))}" if self.sizes else ""
        return f"{self.name}: {self.label} {DTYPES[self.dtype]} {self.head_dim}{' causal' * self.causal}{sizes}"

    def same_kernel(self) -> tuple[object, ...]:
        """Returns a key that two cases share if they are the same kernel."""
        return self.label, self.head_dim, self.dtype, self.causal, self.sizes


def draw_random(seed: int, number: int, lowering: str) -> tuple[GeneratedCase, int]:
    """Draws the accepted case of this number, and returns it with how many draws the package refused before it."""
    rng, refused = random.Random(f"{seed} {number}"), 0
    while True:
        schedule, variant = _random_schedule(lowering, rng), _random_variant(rng)
        try:
            refuse_unless_safe(Planned(schedule), variant.head_dim)
            return _drawn(f"random {number}", schedule, variant), refused
        except ScheduleRefused:
            refused += 1


def _random_schedule(lowering: str, rng: random.Random) -> Schedule:
    """Walks a few random steps from a shipped schedule, more of the tile, and some of the options if it has any."""
    # Late: it is in tests/.
    from mutations import shipped, with_options

    # Only schedules are drawn that are meant for one of HEAD_DIMS.
    meant = [schedule for name, schedule in shipped().items() if {*HEAD_DIMS} & {*resolve(name).head_dims}]
    schedule = rng.choice([schedule for schedule in meant if schedule.lowering == lowering])
    specialized = lowering == "warp_specialized"
    if specialized and rng.random() < 0.3:
        schedule = with_options(schedule, rng)
    schedule = walk(schedule, rng, rng.randint(1, 6))
    schedule = walk(schedule, rng, rng.randint(0, 2), lambda move: move in ("block_M", "block_N", "num_stages"))
    if specialized:
        schedule = walk(schedule, rng, rng.randint(0, 6), lambda move: move.startswith(("kernel.", "softmax.")))
    return schedule


def _random_variant(rng: random.Random) -> Variant:
    """Draws a variant; a third of them have fixed sizes: a few rows or thousands, ragged or multiples of a tile."""
    mask, sizes = rng.choice((FULL, CAUSAL)), None
    if rng.random() < 1 / 3:
        seqs = [rng.choice((1, 64, 128)) * rng.randint(1, 2 ** rng.randint(1, 6)) for _ in "qk"]
        # Causal attention needs as many keys as queries.
        sizes = Sizes(rng.randint(1, 4), rng.randint(1, 16), *(sorted(seqs) if mask == CAUSAL else seqs))
    return Variant(rng.choice(HEAD_DIMS), rng.choice(shape.DTYPES), mask, sizes=sizes, group=1)


def _drawn(name: str, schedule: Schedule, variant: Variant) -> GeneratedCase:
    keys = schedule.model_dump(mode="json", exclude_defaults=True)
    text = yaml.safe_dump(keys, sort_keys=False, default_flow_style=None, width=120)
    sizes = variant.sizes and (*variant.sizes,)
    case = GeneratedCase(name, schedule.label, text, variant.head_dim, variant.dtype, variant.mask == CAUSAL, sizes)
    if rebuilt(case) != (schedule, variant):
        raise ValueError(f"{case} is read back as another case")
    return case


def rebuilt(case: GeneratedCase) -> tuple[Schedule, Variant]:
    """Returns a case's schedule, and the variant that the schedule is compiled for."""
    sizes = Sizes(*case.sizes) if case.sizes else None
    variant = Variant(case.head_dim, case.dtype, CAUSAL if case.causal else FULL, sizes=sizes, group=1)
    return Schedule(**yaml.safe_load(case.schedule)), variant


def lower(case: GeneratedCase) -> GeneratedCase:
    """Returns the case with its verdict and code, which TileLang makes as for `compile_kernel`, but without nvcc."""
    schedule, variant = rebuilt(case)
    program = lowering_of(schedule).prim_func(Planned(schedule), variant)
    try:
        source, host_plan = generated_by_tilelang(program, schedule, variant)
    except Exception as error:  # TileLang raises many kinds.
        return replace(case, verdict=f"{NOT_LOWERED}{telling_line(error)}")
    found = replace(case, source=source, host_plan=host_plan)
    verdict, seconds = judge(found)
    return replace(found, verdict=verdict, proof_s=seconds)


def judge(case: GeneratedCase) -> tuple[str, float]:
    """Returns what the package says of the generated code, and the seconds of a core that the proof took."""
    schedule, _ = rebuilt(case)
    start = time.process_time()
    try:
        check_generated(schedule, derive(schedule), generated(case))
        verdict = ACCEPTED
    except InputError as error:
        verdict = f"{type(error).__name__}: {error}"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        verdict = f"BROKEN: {type(error).__name__}: {error}, in {where.name} of {Path(where.filename).name}"
    return verdict, round(time.process_time() - start, 4)


def generated(case: GeneratedCase) -> GeneratedCode:
    """Returns what the proof reads."""
    schedule, variant = rebuilt(case)
    return GeneratedCode(case.source, case.host_plan, variant, parameters_of(schedule, variant))
