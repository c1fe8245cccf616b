// The loops of part search, compiled once for each instruction set like kernel.cpp.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // of GCC's own AVX-512 header, for a value that is meant to be undefined
#endif
#include "parts.h"

#include "anchors.h"
#include "bounds.h"
#include "element_pairs.h"
