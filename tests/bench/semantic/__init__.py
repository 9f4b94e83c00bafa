"""How well the semantic cache tells questions apart: data, a runner, and what came of it."""
