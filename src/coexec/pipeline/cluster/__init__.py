"""Run one model on several machines as a pipeline, by means of Ray.

    with coexec.Cluster("cluster.toml").session("model.onnx") as session:
        for outputs in session.map(frames):
            ...

``jobs``, ``admission`` and ``planning`` depend neither on Ray nor on the clocks of other
machines. ``machine`` runs on each machine, ``conductor`` supervises all machines. ``nodes`` starts
Ray's processes, ``ray_team`` Ray's actors.
"""
