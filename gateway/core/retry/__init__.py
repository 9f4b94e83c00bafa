"""What follows a failure, and the order in which a call tries its targets."""
