"""This folder says which rows and KV blocks a tile has, and compares all tiles of a grid with that."""
