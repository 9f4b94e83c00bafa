"""The section `state`, and which limits models and replicas share."""
