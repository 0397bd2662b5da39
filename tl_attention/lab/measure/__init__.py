"""This room verifies and times candidates, in processes that may hang, and records rows. It prints nothing."""
