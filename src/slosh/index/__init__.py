"""The index: its specification, the planner that runs a search step by step, hits, records, verify, export."""
