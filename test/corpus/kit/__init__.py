"""What compare.py is made of: cases, archives, servers, requests, and the comparison of answers."""
