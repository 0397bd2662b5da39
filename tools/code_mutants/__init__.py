"""Faults are put into generated code here, one at a time, to find those that the proof lets pass."""
