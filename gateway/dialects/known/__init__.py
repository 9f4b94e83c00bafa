"""What is known of models: by the rows of `models.yaml`, and by what their providers tell of them."""
