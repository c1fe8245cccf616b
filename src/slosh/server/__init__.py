"""`slosh serve`: indexes over HTTP, for programs and for people.

A request passes what surrounds all of them (`middleware.py`: hosts, load, deadlines), is matched with a route
(`*_routes.py`), whose key and index are checked (`dependencies.py`), and whose handler decodes the body (`bodies.py`),
asks the index, and encodes the answer (`answers.py`). Handlers run in threads.
The server knows only `SetIndex`: it serves any engine. Nothing of it is imported by the library.
"""
