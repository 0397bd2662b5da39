"""In this lowering a producer warp loads and warpgroups compute with products in flight, as the Program says."""
