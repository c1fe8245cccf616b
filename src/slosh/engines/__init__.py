"""Where an index lives. `local.py`: a folder with an SQLite database and caches, or memory."""
