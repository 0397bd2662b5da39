"""This room has the space of schedules, proposals from it, the study that keeps them, races and the final."""
