"""`slosh serve`: indexes over HTTP, for programs and for people.

A request passes the gate (`gate.py`: hosts, keys, limits, deadlines), is matched with a route (`routes.py`), whose
handler decodes the body (`bodies.py`), asks the index, and encodes the answer (`answers.py`). Handlers run in threads.
The server knows only `SetIndex`: it serves any engine. Nothing of it is imported by the library.
"""
