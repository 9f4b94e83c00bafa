"""The faults and settings of the emulator."""
