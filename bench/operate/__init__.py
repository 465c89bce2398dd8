"""What it costs to look after a server: authentication, scrapes of its metrics, its pages and lists."""
