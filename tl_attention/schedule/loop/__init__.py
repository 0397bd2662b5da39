"""Tables here list the statements of the attention loop: what each reads, writes and is. They have no behaviour."""
