"""This folder has the proof of the kernels of gradients."""
