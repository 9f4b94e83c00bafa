"""`gateway jobs`: commands that speak to a running gateway, or open one themselves."""
