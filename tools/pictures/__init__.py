"""Pictures that are drawn from records and schedules, a module for each kind; `tools/make.py` draws them."""
