"""What the native APIs of the emulator share: credentials, ids, signatures, prompt caching."""
