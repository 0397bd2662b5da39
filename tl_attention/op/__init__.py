"""This room is `attention` and `attention_varlen` for PyTorch: arguments, plans, operators, gradients and `merge`.

It chooses a schedule for a call and launches the kernel. `integrations/` enters both into other libraries' registries.
"""
