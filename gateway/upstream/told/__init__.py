"""What providers are asked of themselves, beside the calls."""
