"""Conversions between the languages of providers: pure, on parsed JSON and on bytes of streams.

What is known of models: by the rows of `models.yaml`, and by what their providers tell of them.

What turns of models were signed with, for callers that do not send it back: in this process, and among several."""
