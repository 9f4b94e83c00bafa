"""Several workers on one port: `gateway serve --workers N`.

`supervisor` starts, watches and ends the workers; `worker` runs in each; `channel` connects the two; `heartbeat` finds those
that hang. `listeners` has the sockets and the worker at each; `shared_log` keeps log lines apart. `scrape` asks all workers
for their metrics, which `merge_metrics` adds up."""
