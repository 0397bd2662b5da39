"""Verify, time and record: candidates, processes that may hang, rows. Nothing is printed here."""
