"""All credentials of the process, and the requests to the servers that issue them."""
