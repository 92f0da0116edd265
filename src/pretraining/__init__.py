"""Pre-training: phases and evaluation."""
