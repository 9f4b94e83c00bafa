"""The process that serves: alone, or as one of several."""
