"""One checkpoint file: written, verified, found, read."""
