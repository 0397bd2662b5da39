"""A producer warp loads, warpgroups compute with products in flight: emitted from the Program."""
