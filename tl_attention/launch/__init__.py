"""How a finished kernel is launched: by its machine code, and a plan of what the host passes."""
