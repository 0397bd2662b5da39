"""The reading of generated code: CUDA as the events of a thread, host code as the launch."""
