"""A collection in shards: many indexes that are read as one. `engine.py` has the engine, `view.py` what it shows."""
