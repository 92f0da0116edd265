"""Checkpoint files: writing, verifying, finding and reading."""
