// The loops of part search, compiled once for each instruction set like kernel.cpp.
#include "parts.h"

#include "elements.h"
