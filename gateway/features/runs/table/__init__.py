"""The runs that calls belong to, counted as calls end, and the budget of each."""
