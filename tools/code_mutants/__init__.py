"""Faults put into generated code, one at a time: which of them the proof lets pass."""
