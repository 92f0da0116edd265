"""Fine-tuning, whatever the task: train, choose the best checkpoint, evaluate, predict."""
