"""Known cases of what goes wrong with providers, straight at one and through the gateway, on the same scripted load."""
