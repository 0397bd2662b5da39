"""This room has the space of schedules, a schedule's neighbours and parameters, and the race of two kernels."""
