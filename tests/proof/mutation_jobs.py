"""A process of test_mutation_tools.py makes this call; a spawned process imports it by name."""

from code_mutants.on_gpu import compiled


def text_compiled(kernel: str, source: str, cubin: bytes) -> str:
    return compiled(kernel, source, cubin).source
