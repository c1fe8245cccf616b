// The loops of the searches, compiled once for each instruction set like kernel.cpp.
#include "search.h"

#include "flat.h"
#include "hadamard.h"
#include "hamming.h"
#include "ladder.h"
#include "scan.h"
