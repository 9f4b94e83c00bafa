"""HTTP/1.1 towards providers: our pooled transport, and httpx for HTTP/2 and proxies."""
