"""Documents -> pairs of segments -> masked examples -> batches."""
