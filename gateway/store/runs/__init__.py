"""The runs in stores of jobs: their steps with the answers, and their records."""
