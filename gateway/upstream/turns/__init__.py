"""What turns of models were signed with, for callers that do not send it back: in this process, and among several."""
