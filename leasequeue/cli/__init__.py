"""The command line: words in, words out. No SQL, no rules; what it asks and does stands in ``leasequeue.ops``."""
