"""Health: how targets fare, which of them are left alone, and how they come back."""
