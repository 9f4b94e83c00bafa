"""`/v1/jobs`, `Prefer: respond-async`, and the events of a job."""
