"""Conversions between the APIs of providers: pure codecs, the upstream that uses them, and the paths of other APIs."""
