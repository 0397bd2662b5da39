"""Pages are made from records and schedules by `tools/make.py`: each has a module here, and its words in texts/."""
