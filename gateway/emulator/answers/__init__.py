"""The answers of the emulator, from a checked request to bytes."""
