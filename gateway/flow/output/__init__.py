"""The check of answers: retries and repairs of those that break their call's rule, before the client has anything of them."""
