"""This room reads schedules from files: YAML with line numbers, bases, names that ship, the JSON Schema for editors."""
