"""`/admin/jobs`, and how a request would fare as a job."""
