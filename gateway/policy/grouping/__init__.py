"""How inputs of several callers become one request, and its answer theirs again."""
