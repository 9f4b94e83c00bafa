"""Amazon Bedrock: Converse, from chat completions."""
