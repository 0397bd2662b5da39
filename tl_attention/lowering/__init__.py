"""A lowering makes a TileLang kernel of a Program, and has a folder here. Only these folders and compiler/ import tilelang."""
