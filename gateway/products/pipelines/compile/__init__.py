"""A pipeline's YAML compiled into a plan, and the plan explained."""
