"""The command line of the gateway; products bring their own commands."""
