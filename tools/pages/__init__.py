"""Pages are made from records and schedules: each has a module here, and its words in texts/; `tools/make.py` writes it."""
