"""Terms are integers that are not known yet: what generated code computes with sizes, for all sizes at once."""
