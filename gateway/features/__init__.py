"""Small capabilities around single calls: answers reused and checked, objects owned, runs, groups, slower models."""
