"""This module registers the kernels with vLLM, as the backend CUSTOM of MLA's prefill.

vLLM calls `plug_in` in each of its processes, as a plug-in of its group `vllm.general_plugins`.
"""

from __future__ import annotations

import warnings
from inspect import signature

from tl_attention.errors import InputError

# vLLM calls these methods with arguments by name.
METHODS = ("run_prefill_new_tokens", "run_prefill_context_chunk")
EXPECTED = "expected vLLM 0.33 or one with its interface"


def register_vllm() -> str:
    """Registers the kernels with vLLM as the backend CUSTOM of MLA's prefill, and returns that name.

    vLLM calls this itself where this package is installed beside it. Registering changes no model yet:
    `--attention-config.mla_prefill_backend CUSTOM`, or `LLM(..., attention_config={"mla_prefill_backend": "CUSTOM"})`,
    switches models with multi-head latent attention (MLA) to the kernels, for prompts on a Hopper GPU. Their decoding
    stays vLLM's. With VLLM_BATCH_INVARIANT=1 calls have `invariant=True`.

    Returns: "CUSTOM".
    Raises: InputError (a ValueError) if vLLM is not installed or has another interface, or if another plug-in has
        registered CUSTOM.
    """
    try:
        from vllm.v1.attention.backends.mla.prefill.base import MLAPrefillBackend
        from vllm.v1.attention.backends.mla.prefill.registry import MLAPrefillBackendEnum, register_mla_prefill_backend

        from tl_attention.op.integrations.vllm_prefill import Prefill
    except ImportError as error:
        raise InputError(f"vllm: {error}, {EXPECTED}") from None
    for name in METHODS:
        theirs, ours = ([*signature(getattr(of, name)).parameters] for of in (MLAPrefillBackend, Prefill))
        if theirs != ours:
            raise InputError(f"vllm: {name} has the arguments {', '.join(theirs)}, not {', '.join(ours)}: {EXPECTED}")
    if Prefill.__abstractmethods__:
        raise InputError(f"vllm: {min(Prefill.__abstractmethods__)} is a method that is new: {EXPECTED}")
    # A member of our own would be unknown in a process that vLLM spawns, when its configuration is unpickled there.
    custom, path = MLAPrefillBackendEnum.CUSTOM, f"{Prefill.__module__}.{Prefill.__qualname__}"
    if custom.is_overridden() and custom.get_path() != path:
        raise InputError(f"vllm: the backend CUSTOM is {custom.get_path()} already, expected none of another plug-in")
    register_mla_prefill_backend(custom, path)
    return str(custom.name)


def plug_in() -> None:
    """Registers the kernels, or warns that they cannot be: an error would stop vLLM, which may have no use for them."""
    try:
        register_vllm()
    except InputError as error:
        warnings.warn(f"tl_attention: {error}", stacklevel=2)
