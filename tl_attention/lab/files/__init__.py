"""This room reads and writes the files of the laboratory: records, ladders, and what a user names."""
