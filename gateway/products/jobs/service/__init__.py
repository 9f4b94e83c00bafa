"""Jobs as callers ask for them: the fields of a request, and what routes do with a job."""
