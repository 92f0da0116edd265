"""Files of text and of tables, and what tokenizers do to text."""
