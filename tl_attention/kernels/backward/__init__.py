"""The kernels here compute gradients: a producer warp loads, and warpgroups compute with products in flight."""
