"""Providers of the config: where they are, what they are shown for a credential, whose they are."""
