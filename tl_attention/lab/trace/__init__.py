"""The timeline of a kernel that ran with marks: what is read off its buffer, and what people see of it."""
