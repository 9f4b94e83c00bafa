"""The event log of a background response: written by its run, read by any number of readers."""
