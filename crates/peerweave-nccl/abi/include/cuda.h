// Stands in for the toolkit's file, of which NCCL's host headers use little.
#ifndef PEERWEAVE_ABI_CUDA_H
#define PEERWEAVE_ABI_CUDA_H
#include "cuda_runtime.h"
typedef enum { CU_MEM_LOCATION_TYPE_INVALID = 0 } CUmemLocationType;
#endif
