"""Answers from trained models: prediction, export, HTTP."""
