"""Small capabilities around single calls; each is one package, and the core serves calls without it."""
