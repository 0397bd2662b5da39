"""This room searches for fast schedules: it draws, judges, compiles, races and confirms them."""
