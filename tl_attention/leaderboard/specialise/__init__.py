"""A program as one text for one schedule: what the schedule decides is decided, and what it does not use is gone."""
