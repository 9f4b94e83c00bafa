"""Jobs in this process alone, lost with it: the reference, and what is looked into where there are none."""
