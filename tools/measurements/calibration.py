"""`calibrated` makes a machine of what microbenchmarks measured on a GPU, and of another's numbers for the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from statistics import fmean
from typing import Any

import yaml

from tl_attention.errors import InputError
from tl_attention.lab.model.machine import NUMBERS, Machine

# What `probes.measure` returns.
Probes = Mapping[str, Any]


def _mean(*probes: str) -> tuple[str, Callable[[Probes], float]]:
    # A scheduler works in whole cycles; what is measured has the instructions of the benchmark's loop in it.
    return f"calibrate: {', '.join(probes)}", lambda found: round(fmean(found[probe] for probe in probes))


# The numbers that the microbenchmarks give, each with the words of its source.
MEASURED: dict[str, tuple[str, Callable[[Probes], float]]] = {
    "fma": _mean("ffma", "fmul", "fadd"),
    "imad": _mean("imad"),
    "alu": _mean("fmnmx", "cvt", "lop3", "mov"),
    "mufu": _mean("ex2"),
    "mufu_latency": _mean("ex2_latency"),
    "shuffle": _mean("shfl"),
    "shuffle_latency": _mean("shfl_latency"),
    "wgmma_columns": (
        "calibrate: 256 / wgmma_ss_interval_256",
        lambda found: 256 / round(found["wgmma_ss_interval_256"]),
    ),
}


def calibrated(found: Probes, base: Machine, device: str, driver: str, date: str, sms: int) -> Machine:
    """Returns the machine of a GPU whose microbenchmarks found this, with the base's numbers where none is measured.

    The base's sources say then which GPU they are of. Raises InputError where a microbenchmark gave up.
    """
    values: dict[str, Any] = {}
    sources = {name: _of(base, source) for name, source in base.sources.items()}
    for name, (source, value) in MEASURED.items():
        values[name] = round(value(found), 3)
        sources[name] = source
        if values[name] <= 0:
            raise InputError(f"calibrate: {name} is {values[name]:g}, expected more than 0: a microbenchmark gave up")
    return replace(base, device=device, driver=driver, date=date, sms=sms, sources=sources, **values)


def _of(base: Machine, source: str) -> str:
    return source if base.device in source or not source.startswith("fitted") else f"{source}, on {base.device}"


def text(machine: Machine) -> str:
    """Returns a machine as the text of its file."""
    about = {f.name: getattr(machine, f.name) for f in fields(Machine) if f.name not in (*NUMBERS, "sources")}
    lines = [
        f"# The numbers of an {machine.device} for `tl-attention predict`: see docs/model.md.",
        *_keys(about),
        "numbers:",
    ]
    lines += [
        f"  {name}: {{value: {getattr(machine, name):g}, source: {_quoted(machine.sources[name])}}}" for name in NUMBERS
    ]
    return "\n".join(lines) + "\n"


def _keys(about: Mapping[str, object]) -> list[str]:
    return yaml.safe_dump(dict(about), sort_keys=False).splitlines()


def _quoted(source: str) -> str:
    return "'" + source.replace("'", "''") + "'"
