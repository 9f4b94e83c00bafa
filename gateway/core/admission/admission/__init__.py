"""Which target a call may go to now, among its candidates in order."""
