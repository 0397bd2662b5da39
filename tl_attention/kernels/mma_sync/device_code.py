"""These CUDA device functions are those of mma.sync kernels."""

from __future__ import annotations

from tl_attention.kernels.shared.device_code import STORE, STRIDED_STORE, DeviceCode, code_of_totals, read_device_code
from tl_attention.problem.variant import Variant
from tl_attention.schedule.schedule import Schedule

GREW = read_device_code(__file__, "grew")


def device_code(schedule: Schedule, variant: Variant) -> list[DeviceCode]:
    """Returns the device functions that stand before a kernel, in their order."""
    store = STRIDED_STORE if variant.strided else STORE
    grew = [GREW] if schedule.softmax.rescale_threshold > 0 else []
    return [store, *grew, *code_of_totals(variant)]
