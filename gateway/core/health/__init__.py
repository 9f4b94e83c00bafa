"""The health of targets: breakers, usual failure rates and times, and when a target counts as silent."""
