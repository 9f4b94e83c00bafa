"""How single fields and whole entries are read and checked, and the messages for bad ones."""
