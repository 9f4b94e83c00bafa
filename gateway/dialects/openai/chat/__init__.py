"""Chat completions as requests and streams of Responses."""
