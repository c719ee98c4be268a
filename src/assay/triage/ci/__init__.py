"""CI analysis: where its time goes, how to shard it, which tests are flaky, and which tests a change
affects."""
