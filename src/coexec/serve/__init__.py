"""A server that answers the Open Inference Protocol v2 over HTTP.

`server` needs the extra ``coexec[serve]``; `served`, `session` and `protocol` do not.
"""
