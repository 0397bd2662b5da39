"""This folder has the proof of the kernels of `lowering: warp_specialized`."""
