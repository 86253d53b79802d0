"""Requirements of checks: one sentence each, and the result of judging it."""
