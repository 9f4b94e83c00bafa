"""Batches as decisions: what a line may be, how lines are divided and indexed, what a batch looks like to its owner."""
