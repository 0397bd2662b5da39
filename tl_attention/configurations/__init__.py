"""The kernels of "flash attention from scratch" are schedules here, each found by that text's own notation."""
