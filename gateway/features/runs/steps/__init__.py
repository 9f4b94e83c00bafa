"""Steps of runs: what was paid for once is given again."""
