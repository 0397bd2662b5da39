"""Pages are made from records and schedules, and each page has a module here; `tools/make.py` writes them."""
