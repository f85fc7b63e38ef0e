"""A server that answers the Open Inference Protocol v2 over HTTP.

`served` and `session` work without the packages of the extra ``coexec[serve]``.
"""
