"""Pictures are drawn from records and schedules, and each kind has a module here; `tools/make.py` draws them."""
