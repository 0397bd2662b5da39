"""This folder reads generated CUDA, and the C that launches it, into trees of known lines."""
