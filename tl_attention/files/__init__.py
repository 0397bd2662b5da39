"""Schedules as files: YAML with its line numbers, bases, names that ship, the JSON Schema for editors."""
