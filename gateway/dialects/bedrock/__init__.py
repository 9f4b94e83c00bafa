"""Amazon Bedrock: Converse for chat completions."""
