"""The emulator's Responses API, and the texts and media that it makes up."""
