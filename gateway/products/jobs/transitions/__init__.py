"""The state machine of jobs and their pieces, without storage."""
