"""What users rely on by name: one text file per surface, compared with what the code has."""
