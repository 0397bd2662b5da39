"""This room records timelines of kernels that run with marks, what each role did when, and draws views of them."""
