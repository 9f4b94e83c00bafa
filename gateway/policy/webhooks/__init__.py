"""Whom the ends of jobs are told to, in what words, and when it is tried again."""
