"""A problem is what one attention forward computes: its sizes, dtype and mask, and its tiles. All of it is plain data."""
