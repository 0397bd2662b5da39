"""Pictures of the records in results/, one kind in each module, drawn by `tools/pictures.py`."""
