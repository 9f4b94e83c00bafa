"""The edge: HTTP in, OpenAI-shaped answers out. The only place with starlette and uvicorn."""
