"""From a Program to a TileLang kernel, one folder for each lowering. Only these folders and build/ import tilelang."""
