"""Other queues on PostgreSQL, beside Hark, each in processes of its own."""
