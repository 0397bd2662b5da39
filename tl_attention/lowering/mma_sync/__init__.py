"""Fragments by ldmatrix, products by mma.sync, loads by cp.async: on every card from Ampere on."""
