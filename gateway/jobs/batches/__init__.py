"""The pieces of a batch: its input is checked, its chunks run, its files are put together."""
