"""Optimizer, training step, loop, and what a run leaves in its folder."""
