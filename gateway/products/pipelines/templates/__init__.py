"""The templates of a pipeline's requests, and how long texts are split."""
