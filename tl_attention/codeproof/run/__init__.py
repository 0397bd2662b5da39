"""This folder runs generated code for all threads of a cluster, and makes events of what they do."""
