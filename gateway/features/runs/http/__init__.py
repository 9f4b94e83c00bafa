"""Runs in requests and answers: headers, `/v1/runs`, and the admin views of workflows."""
