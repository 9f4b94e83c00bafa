"""Conversions between the languages of providers: pure, on parsed JSON and on bytes of streams."""
