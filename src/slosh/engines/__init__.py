"""Where an index lives. `base.py` has the contract, `registry.py` the engines that satisfy it."""
