"""Ways to a server, behind one seam (`api.Transport`)."""
