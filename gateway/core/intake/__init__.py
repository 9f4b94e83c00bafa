"""From the bytes and headers of a request to a `Call`."""
