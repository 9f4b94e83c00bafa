"""A discrete-event simulation of admission: the gateway's own policy code under a virtual clock. README.md says more."""
