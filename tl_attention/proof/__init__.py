"""This package proves a schedule before it runs: its dependences, races, deadlocks, and the limits of the SM."""
