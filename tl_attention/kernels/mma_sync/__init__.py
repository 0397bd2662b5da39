"""This lowering reads fragments by ldmatrix, multiplies by mma.sync and loads by cp.async, on cards from Ampere on."""
