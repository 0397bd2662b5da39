"""This room simulates an SM: how long a schedule's kernel takes on a GPU that is not here, and what limits it."""
