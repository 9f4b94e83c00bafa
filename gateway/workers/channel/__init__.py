"""The supervisor's connection to each worker, and the listeners that they share."""
