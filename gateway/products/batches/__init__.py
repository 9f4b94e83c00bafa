"""The pieces of a batch: its input is checked, its chunks run, its files are put together.

Batches as decisions: what a line may be, how lines are divided and indexed, what a batch looks like to its owner."""
