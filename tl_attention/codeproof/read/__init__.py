"""This folder reads generated CUDA into trees of known lines, and the launch off TVM's IR."""
