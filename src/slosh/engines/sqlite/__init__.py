"""An index in a folder, in an SQLite database. `engine.py` is where to start reading."""
