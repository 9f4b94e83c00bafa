"""Several workers on one port: `gateway serve --workers N`.

`supervisor` starts, watches and ends them; `worker` is what runs in each; `channel` is the line between the two. `places` has
the listeners and who is at them; `commonlog` keeps their lines apart. `census` asks all of them for their numbers, of which
`numbers` makes one answer.
"""
