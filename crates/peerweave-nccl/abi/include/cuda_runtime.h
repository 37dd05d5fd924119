// What NCCL's headers need of CUDA's to be read by a C++ compiler: two handles and a version.
// Stands in for the toolkit's file.
#ifndef PEERWEAVE_ABI_CUDA_RUNTIME_H
#define PEERWEAVE_ABI_CUDA_RUNTIME_H
#define CUDART_VERSION 13000
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
#endif
