"""Has the shipped schedules of the mma_sync lowering, and makes others that differ from one of them."""

from typing import Any

from mutations import SCHEDULES

from tl_attention.problem.head_dims import sizes_of
from tl_attention.schedule.files.schedule_file import Named, load_file
from tl_attention.schedule.schedule import Schedule

FILES: dict[str, Named] = {
    path.relative_to(SCHEDULES).with_suffix("").as_posix(): load_file(path)
    for path in sorted([*SCHEDULES.glob("mma_sync*.yaml"), *SCHEDULES.glob("mma_sync/*.yaml")])
}
SHIPPED: dict[str, Schedule] = {name: file.schedule for name, file in FILES.items()}
TOP = tuple(name for name in SHIPPED if "/" not in name)
# Each schedule of the family changes eager.yaml, which changes plain.yaml.
FAMILY = tuple(name for name in SHIPPED if "/" in name)
EAGER = SHIPPED["mma_sync/eager"]
# Eager copies, two fragments in flight, x2 for x4, no swizzle.
OF_OTHER_CODE = tuple(f"mma_sync/{name}" for name in ("plain", "eager", "fragments", "x2", "rows"))


def head_dim(name: str) -> int:
    """Returns the head size of a shipped schedule."""
    return sizes_of(FILES[name].head_dims[0])[0]


def changed(schedule: Schedule = EAGER, **keys: Any) -> Schedule:
    """Returns the schedule with other keys; keys of options are merged. Raises ValueError where they break a rule."""
    fields = schedule.model_dump(exclude_unset=True)
    for key, value in keys.items():
        fields[key] = {**fields.get(key, {}), **value} if isinstance(value, dict) else value
    return Schedule(**fields)


def reordered(schedule: Schedule, group: int, *names: str) -> Schedule:
    """Returns the schedule with the statements of one of its groups in this order."""
    groups = list(schedule.group)
    assert sorted(groups[group]) == sorted(names)
    groups[group] = names
    return changed(schedule, group=groups)
