"""The paper's evaluation: cells to run, a runner that survives being cut off, and a store of raw results."""
