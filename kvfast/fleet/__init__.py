"""A fleet's view: events over ZeroMQ in the form that engines publish, and the engines' prefixes.

    publisher = Publisher(PublisherOptions("tcp://*:5557", replay="tcp://*:5558"))
    publisher.publish(manager.take_events())            # in the engine, after each step

    view = FleetView({"a": Source("tcp://host:5557", replay="tcp://host:5558")})
    view.poll(timeout_s=0.1)                            # in the router
    view.index.prefixes(request.block_hashes)           # {"a": 12}: blocks, from the first on

`Publisher`, `FleetView` and the options are in `kvfast.fleet.publisher` and `kvfast.fleet.view`,
which need `pip install 'kvspec[fleet]'`. The index itself (`kvfast.fleet.index`) needs nothing.
"""
