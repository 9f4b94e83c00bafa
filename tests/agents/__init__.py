"""Real clients and agents, with keys of two tenants, at a strict emulator in each language of targets: `make agents`."""
