"""Conversions between the APIs of providers: pure, on parsed JSON and on bytes of streams."""
