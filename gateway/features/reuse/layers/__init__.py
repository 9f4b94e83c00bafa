"""The layers that may have an answer, in the order in which they are asked."""
