"""An SM is simulated: how long a schedule's kernel takes on a GPU that is not here, and what limits it."""
