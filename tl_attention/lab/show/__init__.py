"""This room makes what people read: schedules, Programs, rows and differences as text and tables."""
