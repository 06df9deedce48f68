"""More processes behind one port: what a worker needs to be one of several.

Belongs here: the page that workers share, what they say and read there, how they share connections, how one of them
shows the metrics of all, when a dead one is started again.
Must not be here: starting and watching processes (`webhook.supervisor`), anything about reviews.
Imported by: `app`, `supervisor`.

Read in this order: `page` -> `member` -> `acceptor` -> `metrics` -> `restarts`.
"""
