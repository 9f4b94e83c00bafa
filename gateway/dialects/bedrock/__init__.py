"""Amazon Bedrock: Converse, and what all its APIs share."""
