"""The ports of durable work, a module each: implemented in `store/`, wired together in `wiring.py`.

Jobs as decisions: what a job is, how it ends, when it is tried again, what a batch may hold.

Stores of jobs.

Jobs in this process alone, lost with it: the reference, and what is looked into where there are none.

Jobs in the Redis that replicas share: Streams with a consumer group, one slot per partition.

Jobs in a file of their own, durable before they are answered: for a gateway alone."""
