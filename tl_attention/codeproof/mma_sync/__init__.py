"""This folder has the proof of the kernels of `lowering: mma_sync`."""
