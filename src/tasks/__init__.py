"""The tasks, and the course of fine-tuning that they share."""
