"""Moves change one thing in a schedule. They give a schedule's neighbours and random walks."""
