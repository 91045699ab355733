"""Formats of requests and answers that a handler need not know of: service_envelope names one of these modules."""
