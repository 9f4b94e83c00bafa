"""The loop of attempts of one call, and the request that each attempt sends."""
