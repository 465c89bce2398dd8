"""What goes on, for those who watch: rates, depths, the last hour."""
