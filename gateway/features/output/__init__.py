"""The check of answers: retries and repairs of those that break their call's rule, before the client has anything of them.

Whether what a model has written is what was asked for, and what follows if it is not: pure decisions and texts."""
