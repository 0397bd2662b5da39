"""This folder has what several kernels share: constants, rows, masks, features, the softmax."""
