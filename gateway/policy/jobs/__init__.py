"""Jobs as decisions: what a job is, how it ends, when it is tried again, what a batch may hold."""
