"""The statements of the attention loop: what each reads, writes and is. Tables, no behaviour."""
