"""The reading of generated code: CUDA run by all threads of a block, host code as the launch."""
