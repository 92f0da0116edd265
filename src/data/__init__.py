"""Raw text, features and batches."""
