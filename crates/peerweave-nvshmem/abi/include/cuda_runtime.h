// The little of CUDA's headers that NVSHMEM's need in order to be read by a C++ compiler without
// CUDA. Sizes of these types are not asked about.
#pragma once
#include <stddef.h>
#include <stdint.h>
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __forceinline__ inline
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUmod_st *CUmodule;
typedef struct CUlib_st *CUlibrary;
struct dim3 { unsigned x, y, z; };
struct double2 { double x, y; };
struct int4 { int x, y, z, w; };
struct uint4 { unsigned x, y, z, w; };
struct longlong2 { long long x, y; };
struct ulonglong2 { unsigned long long x, y; };
#define CUDA_VERSION 12090
#define CUDART_VERSION 12090
