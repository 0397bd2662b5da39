"""Pages that are made from records and schedules, a module for each page; `tools/make.py` writes them."""
