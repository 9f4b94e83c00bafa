"""Runs of workflows: their budgets, their steps that are paid for once, and their reports."""
