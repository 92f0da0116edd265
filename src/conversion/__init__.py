"""Weights and vocabularies of other programs."""
