"""Values of runs: texts that they are put into, what filters make of them, and the conditions that judge them."""
