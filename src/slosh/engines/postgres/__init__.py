"""An index in PostgreSQL, with pgvector: `engine.py` is the engine, docs/postgres.md says what is stored and why."""
