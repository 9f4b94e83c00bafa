"""The logs of responses and the responses that are kept, in every store of jobs."""
