"""A batch size that follows the run: a ladder of checked batches, and the policies that climb it."""
