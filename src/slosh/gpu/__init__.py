"""What runs on a GPU: embedding, distance fields, the maps of whitening, and the exact scan. Arrays of NumPy come in
and go out; torch is imported when a GPU is first asked for.
"""
