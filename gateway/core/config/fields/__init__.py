"""Reading: YAML with line numbers, environment variables, single fields, and problems in words."""
