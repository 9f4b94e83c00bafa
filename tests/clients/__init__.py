"""Official SDKs of four languages, installed into folders of their own and run against a gateway."""
