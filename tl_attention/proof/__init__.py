"""What holds of a schedule before it runs: dependences, races, deadlocks, and the limits of the SM."""
