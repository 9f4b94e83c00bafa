"""The command line, one module per command.

The edge: HTTP in, OpenAI-shaped answers out. The only place with starlette and uvicorn.

The routes of jobs, batches and files.

Durable work: the worker that runs jobs, and what routes may ask of them. Read `worker.py` first.

State behind ports: what outlives a call, in memory or in a file."""
