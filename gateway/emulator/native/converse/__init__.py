"""Bedrock's Converse: its calls read, checked and answered."""
