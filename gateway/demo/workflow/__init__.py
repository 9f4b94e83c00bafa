"""The scenario "workflow": runs of ten steps while the program that walks them, and the gateway, are killed on the way."""
