"""A stub replaced by the core: see pruner.py."""
