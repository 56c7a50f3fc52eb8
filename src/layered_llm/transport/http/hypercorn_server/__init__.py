"""What hypercorn 0.18 needs to keep this server's promises: pinned to that release, one file per fault.

Must not know: the application.

Each fault has a test that fails without its workaround, so that the file can be deleted when upstream has mended it:

* `tcp_server`: a write to a peer that does not read cannot be cancelled; a peer that leaves behind unread bytes is not
  noticed; an idle connection outlives its peer; a refused body costs its response; one connection's error ends the server;
  connections lack keepalive.
* `h11_protocol`: bytes behind a request cost it its answer; responses have no reason phrase; `Upgrade: h2c` is taken.
* `h2_protocol`: HTTP/2 streams have no backpressure, no end when the peer's window never opens, and an error for DATA behind
  an early response; what only the protocol answers waits for the next event.
* `worker`: `hypercorn layered_llm.app` starts asyncio; workers die by SIGTERM while they drain; the application is not told
  of a shutdown.
* `accept_log`: a process that has no file descriptor left logs ten tracebacks a second.
* `options`: defaults that break pools of keep-alive clients and freeze HTTP/2 streams after 1,000 requests.

One more fault, leaked connections after completed responses, is quart-trio's and handled in `transport.http.connection`.
"""
